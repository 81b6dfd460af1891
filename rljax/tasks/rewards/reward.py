"""Reward of a response, and the errors of a reward function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rljax.tasks.task import Task
from sidecar.errors import describe

TIMED_OUT = "timed_out"
"""Part of a reward with a time limit of its own: 1 where that ended it before it had looked at everything."""


@dataclass(frozen=True, slots=True)
class Reward:
    """Score of a response and its named parts, which are logged."""

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)


class RewardError(RuntimeError):
    """The reward gave no score: it raised, died, or returned something that is no finite number."""


class RewardTimeout(RewardError):
    """The reward did not return within its time limit."""


class JudgeUnavailable(RewardError):
    """A served judge gave no usable answer, however often it was asked."""


Response = str | tuple[str, ...]
"""Text of a response; of all responses of a group or batch, for a reward that takes them together."""

Tasks = Task | tuple[Task, ...]
"""The task of a response, or of a group; that of each response, for a reward that takes a batch."""

RewardFunction = Callable[..., Any]
"""Judges the text of a response to a task: ``(task, response)``, and keyword-only arguments from the config. Returns a
number, named parts, or a `Reward`; an ``async def`` is awaited. One that takes ``(task, responses)`` judges a whole
group, one that takes ``(tasks, responses)`` a batch; they return one of these for each response, in order.
"""


def as_rewards(value: object, response: Response) -> tuple[Reward, ...]:
    """Converts what a reward function returned for a response, or for those of a group or batch, checked.

    Raises:
        TypeError: no number or parts; for several responses, no sequence.
        ValueError: a number that is not finite; for several responses, not as many as these.
    """
    if isinstance(response, str):
        return (as_reward(value),)
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise TypeError(f"returned {type(value).__name__}, not a reward for each of {len(response)} responses")
    rewards = tuple(as_reward(one) for one in value)
    if len(rewards) != len(response):
        raise ValueError(f"returned {len(rewards)} rewards for {len(response)} responses")
    return rewards


def rewards_of(function: RewardFunction, returned: object, response: Response) -> tuple[Reward, ...]:
    """Returns `as_rewards` of what this function returned.

    Raises:
        RewardError: it is none; the message says where the function stands, since no line of it raised.
    """
    try:
        return as_rewards(returned, response)
    except (TypeError, ValueError) as error:
        raise RewardError(f"{type(error).__name__}: {error}{_place(function)}") from error


def reason_of(error: BaseException) -> str:
    """Returns why a reward gave no score, in a line; of its own error with the place where it was raised."""
    return str(error) if type(error) is RewardError else describe(error)


def _place(function: RewardFunction) -> str:
    while isinstance(function, partial):
        function = function.func
    inner = inspect.unwrap(function)
    called = getattr(type(inner), "__call__", None)  # noqa: B004 — of an object
    code = getattr(inner, "__code__", None) or getattr(called, "__code__", None)
    name = getattr(inner, "__name__", type(inner).__name__)
    return f" ({name}, {code.co_filename}:{code.co_firstlineno})" if code else f" ({name})"


def as_reward(value: object) -> Reward:
    """Converts the result of a reward function, checked. Parts without a score are added up.

    Raises:
        TypeError: no number.
        ValueError: a number that is not finite.
    """
    if isinstance(value, Reward):
        return Reward(_number(value.score), _numbers(value.parts))
    if isinstance(value, Mapping):
        parts = _numbers(value)
        return Reward(sum(parts.values()), parts)
    return Reward(_number(value))


def _numbers(parts: Mapping[Any, object]) -> dict[str, float]:
    return {str(name): _number(part) for name, part in parts.items()}


def _number(value: object) -> float:
    # `float()` would accept the text "1.0"; what has `__float__` is a number, of Python, numpy, jax or sympy.
    if not hasattr(value, "__float__"):
        raise TypeError(f"returned {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}")
    return number
