"""Reward of a response, and the errors of a reward function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reward:
    """Score of a response and its named parts, which are logged."""

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)


class RewardError(RuntimeError):
    """The reward gave no score: it raised, died, or returned something that is no finite number."""


class RewardTimeout(RewardError):
    """The reward did not return within its time limit."""


RewardFunction = Callable[..., "float | Reward"]
"""Judges the text of a response to a task: ``(task, response)``, and keyword-only arguments from the config."""


def as_reward(value: object) -> Reward:
    """Converts the result of a reward function, checked.

    Raises:
        TypeError: no number.
        ValueError: a number that is not finite.
    """
    if isinstance(value, Reward):
        return Reward(_number(value.score), {str(name): _number(part) for name, part in value.parts.items()})
    return Reward(_number(value))


def _number(value: object) -> float:
    # `float()` would accept the text "1.0"; what has `__float__` is a number, of Python, numpy, jax or sympy.
    if not hasattr(value, "__float__"):
        raise TypeError(f"returned {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}")
    return number
