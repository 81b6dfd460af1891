"""Adapter that makes a text environment of any gymnasium environment with a few numbered actions, by a description."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs import checks, registered
from envs.canonical import canonical
from envs.word_env import WordEnv, rules

_SUCCESS = ("terminated", "truncated", "reward", "return")
_WITH_THRESHOLD = ("reward", "return")
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_STYLED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0m", re.DOTALL)  # how gymnasium colours text


class DescribedEnv(WordEnv):
    """Plays the environment ``env_id``; rewards and ends are its own, an invalid action gives 0 and passes no time."""

    def __init__(
        self,
        env_id: str,
        instruction: str,
        actions: Sequence[str],
        observation: str | Sequence[str] = "ansi",
        success: str = "terminated",
        threshold: float | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes the environment and checks that the description fits it.

        Args:
            env_id: a registered gymnasium environment with a Discrete action space.
            instruction: the rules, and how to read what is shown; the actions are appended.
            actions: a name for each action, in the order of their numbers.
            observation: "ansi", the environment's own drawing, where coloured text becomes ``[colour:text]``; or a
                format string with ``{observation}`` or its parts, ``{observation[0]:.2f}``; or a name for each
                dimension of a vector.
            success: the task is solved once the episode "terminated", or was "truncated", or a step's "reward" or
                their sum, the "return", is at least ``threshold``.
            threshold: for "reward" and "return", and for these alone.
            env_kwargs: what the environment is made with.
            render_mode: None or "ansi".

        Raises:
            TypeError, ValueError: where the description does not fit the environment.
        """
        words = checks.texts("actions", actions)
        drawn = observation == "ansi"
        options = checks.options("env_kwargs", env_kwargs) | ({"render_mode": "ansi"} if drawn else {})
        self._success, self._threshold = _checked_success(success, threshold)
        self._inner = gymnasium.make(registered(checks.text("env_id", env_id)), **options)
        try:
            self._first_action = _checked_actions(self._inner, env_id, words)
            self._show: Callable[[Any], str] = _observation_renderer(self._inner, env_id, observation)
        except BaseException:
            self._inner.close()
            raise
        super().__init__(rules(checks.text("instruction", instruction), words), words, render_mode)

    def close(self) -> None:
        """Closes the wrapped environment."""
        self._inner.close()

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._observation, _ = self._inner.reset(seed=seed, options=options)
        self._return, self._success_seen = 0.0, False

    def _act(self, index: int) -> tuple[float, bool, bool]:
        self._observation, reward, terminated, truncated, _ = self._inner.step(self._first_action + index)
        self._return += float(reward)
        so_far = {
            "terminated": float(terminated),
            "truncated": float(truncated),
            "reward": float(reward),
            "return": self._return,
        }
        self._success_seen |= so_far[self._success] >= self._threshold
        return float(reward), bool(terminated), bool(truncated)

    def _picture(self) -> str:
        return self._show(self._observation)

    def _state(self) -> str:
        """Returns the observation as text, without the last action, which drawings of gymnasium show too."""
        return canonical(self._observation)

    def _solved(self) -> bool:
        return self._success_seen


def _checked_success(success: Any, threshold: Any) -> tuple[str, float]:
    if success not in _SUCCESS:
        raise ValueError(f"success must be one of {', '.join(_SUCCESS)}, not {success!r}")
    if success in _WITH_THRESHOLD:
        return success, checks.number("threshold", threshold)
    if threshold is not None:
        raise ValueError(f"threshold goes with success={' or '.join(_WITH_THRESHOLD)}, not with {success}")
    return success, 1.0


def _checked_actions(env: gymnasium.Env[Any, Any], env_id: str, words: tuple[str, ...]) -> int:
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise TypeError(f"env_id={env_id} has the action space {space}; it must be a Discrete one")
    if space.n != len(words):
        raise ValueError(f"actions holds {len(words)} names, but {env_id} has {space.n} actions")
    return int(space.start)


def _observation_renderer(env: gymnasium.Env[Any, Any], env_id: str, how: Any) -> Callable[[Any], str]:
    """Returns the function that renders an observation as text."""
    if how == "ansi":
        if "ansi" not in env.metadata.get("render_modes", ()):
            raise ValueError(f"{env_id} draws no text; give observation as a format string or as names")
        return lambda _: _without_colours(str(env.render()))
    if isinstance(how, str):
        fields = [field for _, field, _, _ in string.Formatter().parse(how) if field is not None]
        if not fields or not all(re.fullmatch(r"observation(\[\w+\])*", field) for field in fields):
            raise ValueError(
                f"observation must hold {{observation}} or parts of it such as {{observation[0]}}: {how!r}"
            )
        return lambda observation: how.format(observation=observation)
    names = checks.texts("observation", how)
    dimensions = spaces.flatdim(env.observation_space)
    if not isinstance(env.observation_space, spaces.Box | spaces.MultiDiscrete | spaces.Tuple):
        raise TypeError(f"observation as names needs a vector, but {env_id} observes {env.observation_space}")
    if isinstance(env.observation_space, spaces.MultiDiscrete | spaces.Tuple):
        dimensions = len(env.observation_space)
    if dimensions != len(names):
        raise ValueError(f"observation holds {len(names)} names, but {env_id} observes {dimensions} numbers")
    return lambda observation: ", ".join(
        f"{name}: {_short(value)}" for name, value in zip(names, np.ravel(observation).tolist(), strict=True)
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _without_colours(drawing: str) -> str:
    """Marks in words the text that only its colour distinguishes, such as the player's cell."""

    def marked(match: re.Match[str]) -> str:
        codes = [int(code) for code in match[1].split(";") if code]
        colour = next((_COLOURS[code % 10] for code in codes if code // 10 in (3, 4) and code % 10 < 8), None)
        return f"[{colour}:{match[2]}]" if colour else match[2]

    drawing = _STYLED.sub(marked, drawing)
    return re.sub(r"\x1b\[[\d;]*m", "", drawing).strip("\n")
