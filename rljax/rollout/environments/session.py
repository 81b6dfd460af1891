"""Interface between explorer and environments, in plain data that crosses processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Protocol

import envs

log = logging.getLogger(__name__)

SEEDS = 2**31
"""Environment seeds are below this: many environments take seeds of 32 bits."""

_UNMADE = "cannot be made:"


class EnvironmentFailure(Exception):
    """Raised when an environment cannot go on with its episode; a fresh one may try again."""


class EnvironmentRaised(EnvironmentFailure):
    """Raised when an environment raised."""


class EnvironmentBroken(EnvironmentFailure):
    """Raised when an environment returned what no text environment returns."""


class EnvironmentHung(EnvironmentFailure):
    """Raised when an environment did not answer in time."""


class EnvironmentDied(EnvironmentFailure):
    """Raised when an environment's process ended while it alone was computing."""


class EnvironmentLost(EnvironmentFailure):
    """Raised when an environment's process ended by the fault of another environment, or of an unknown one. The
    attempt is made again, as it was.
    """


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Specification of an environment: its gymnasium id and arguments.

    Attributes:
        id: of gymnasium; ``PACKAGE:ID`` imports the package first.
        kwargs: arguments of ``gymnasium.make``, plain values.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.id, repr(sorted(self.kwargs.items()))))


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of an environment's reset or step; see `envs.text_env` for the entries of ``info``.

    Attributes:
        text: the observation.
        reward: of the step.
        terminated, truncated: whether the episode is over, by its rules or by a limit.
        valid: whether the step's text was an action.
        success: whether the task is solved by now.
        instruction, suffix, state: from ``info``; empty where it has none.
        actions: the actions that are valid now, where ``info`` has them.
        metrics: further numbers, by name.
    """

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    success: bool = False
    instruction: str = ""
    suffix: str = ""
    state: str = ""
    actions: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """True once the episode has ended."""
        return self.terminated or self.truncated


class Session(Protocol):
    """One environment, in use by one episode. Raises `EnvironmentFailure`; after that it is not called again."""

    async def reset(self, seed: int) -> Observation:
        """Begins an episode and returns its first observation."""
        ...

    async def step(self, action: str) -> Observation:
        """Plays one action and returns what the environment answers."""
        ...


class LocalEnvironment:
    """A gymnasium environment in this process, whose return values are checked."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Makes the environment. Raises EnvironmentRaised: it cannot be made."""
        self.name = spec.id
        self._seen = Observation("")
        with _wrapping_errors(self.name, _UNMADE):
            self.env = _make(spec)

    @staticmethod
    def seed_of(seed: int) -> int:
        """Returns the seed of the environment for a task's seed, below `SEEDS`."""
        return seed % SEEDS

    def reset(self, seed: int) -> Observation:
        """Begins an episode.

        Raises:
            EnvironmentRaised, EnvironmentBroken: it cannot.
        """
        with _wrapping_errors(self.name, "reset raised"):
            answer = self.env.reset(seed=self.seed_of(seed))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EnvironmentBroken(f"{self.name}: reset returned {_kind(answer)}, not (observation, info)")
        text, info = answer
        self._seen = Observation(self._text(text, "reset"), **self._of_info(info, "reset"))
        return self._seen

    def step(self, action: str) -> Observation:
        """Plays one action. Text that lies outside the action space is not passed to the environment: it is an invalid
        action, and leaves all as it was.

        Raises:
            EnvironmentRaised, EnvironmentBroken: it cannot.
        """
        with _wrapping_errors(self.name, "step raised"):
            if not self.env.action_space.contains(action):
                return replace(self._seen, reward=0.0, valid=False)
            answer = self.env.step(action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise EnvironmentBroken(
                f"{self.name}: step returned {_kind(answer)}, not (observation, reward, terminated, truncated, info)"
            )
        text, reward, terminated, truncated, info = answer
        if not isinstance(reward, Real) or not math.isfinite(reward):
            raise EnvironmentBroken(f"{self.name}: step gave the reward {reward!r}, which is no finite number")
        known = {"success": bool(terminated) and float(reward) > 0, **self._of_info(info, "step")}
        self._seen = Observation(self._text(text, "step"), float(reward), bool(terminated), bool(truncated), **known)
        return self._seen

    def close(self) -> None:
        """Closes the environment; an error of its own while closing, SystemExit included, is noted and no more."""
        try:
            with _wrapping_errors(self.name, "close raised"):
                self.env.close()
        except EnvironmentRaised as error:
            log.debug("%s", error)

    def _text(self, text: Any, call: str) -> str:
        if not isinstance(text, str):
            raise EnvironmentBroken(f"{self.name}: {call} observed {_kind(text)}, not a text")
        return text

    def _of_info(self, info: Any, call: str) -> dict[str, Any]:
        if not isinstance(info, Mapping):
            raise EnvironmentBroken(f"{self.name}: the info of {call} is {_kind(info)}, not a dict")
        try:
            found: dict[str, Any] = {n: str(info[n]) for n in ("instruction", "suffix", "state") if n in info}
            found["actions"] = tuple(str(action) for action in info.get("actions", ()))
            found |= {n: bool(info[n]) for n in ("valid", "success") if n in info}
            metrics = info.get("metrics", {})
            if isinstance(metrics, Mapping):
                found["metrics"] = {str(n): float(v) for n, v in metrics.items() if isinstance(v, Real)}
        except Exception as error:
            raise EnvironmentBroken(
                f"{self.name}: the info of {call} cannot be read: {type(error).__name__}: {error}"
            ) from error
        return found


def check_registered(env_id: str) -> None:
    """Looks an environment's id up in gymnasium, and makes no environment; the package that the id names is imported.

    Raises:
        EnvironmentRaised: there is no such environment; it says what `LocalEnvironment` would.
    """
    with _wrapping_errors(env_id, _UNMADE):
        envs.registered(env_id)


def _make(spec: EnvironmentSpec) -> Any:
    import gymnasium

    # gymnasium's checks of spaces are left out, and an episode's limits are the caller's.
    return gymnasium.make(envs.registered(spec.id), disable_env_checker=True, max_episode_steps=-1, **spec.kwargs)


@contextlib.contextmanager
def _wrapping_errors(name: str, what: str) -> Iterator[None]:
    """Turns whatever an environment raises, SystemExit included, into an EnvironmentRaised that names it."""
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EnvironmentRaised(f"{name}: {what} {type(error).__name__}: {error}") from error


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
