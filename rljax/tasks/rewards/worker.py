"""What runs inside a worker process. Plain values alone come back: no reward can break the pipe by its own types."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rljax.tasks.rewards.registry import Scorer, resolve_reward
from rljax.tasks.rewards.reward import Reward, as_reward
from rljax.tasks.task import RewardTerm, Task

_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a reward gave no score, in one line."""

    reason: str


def preload(names: Sequence[str]) -> None:
    """Imports what the rewards need, so that the first response does not pay for it."""
    for name in names:
        # Whatever is wrong will be wrong again when the reward is called, and is reported then.
        with contextlib.suppress(Exception):
            _scorer(name)
        if name == "numeric":
            import math_verify  # noqa: F401
        elif name == "reasoning_gym":
            import reasoning_gym  # noqa: F401


def ready() -> bool:
    """Does nothing; its return says that a worker is up."""
    return True


def judge(term: RewardTerm, task: Task, response: str, limit: float) -> Reward | Failure:
    """Calls a reward.

    Args:
        term: which reward, with its arguments.
        task, response: what is judged.
        limit: seconds after which the parent kills this process.
    """
    with _suicide(limit + _GRACE):
        try:
            return as_reward(_scorer(term.name).function(task, response, **term.args))
        except BaseException as error:
            return Failure(describe(error))


def describe(error: BaseException) -> str:
    """One line: type, message, and the place where it was raised."""
    text = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


@lru_cache(maxsize=64)
def _scorer(name: str) -> Scorer:
    return resolve_reward(name, "rewards")


@contextlib.contextmanager
def _suicide(seconds: float) -> Iterator[None]:
    """Lets the kernel end this process when the parent, which should have done so, is dead.

    The default action of SIGALRM needs neither the interpreter nor its lock, so it also ends a loop inside C code.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
