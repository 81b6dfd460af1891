"""Text rewards: cheap enough for the event loop, in time linear in the response."""

from __future__ import annotations

import re

from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.task import Task

_PLACE = re.compile(r"[0-9]|<\|\w+\|>")
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@built_in("exact", Place.INLINE)
def exact(task: Task, response: str) -> float:
    """Returns 1 if the response is the reference answer, white space around both aside; else 0."""
    return float(response.strip() == task.answer.strip())


@built_in("digits", Place.INLINE)
def digits(task: Task, response: str) -> float:
    """Returns the share of digits that are right and at the right place, in [0, 1].

    Other characters are passed over, in the response and in the reference. The share is of the longer of the two, so
    that digits too many cost as much as digits missing. A special token such as ``<|user|>`` stands for a wrong digit:
    if it were passed over, it would move the digits after it, and a policy could settle on that.
    """
    wanted, given = _PLACE.findall(task.answer), _PLACE.findall(response)
    right = sum(a == b and a.isdigit() for a, b in zip(wanted, given, strict=False))
    return right / max(len(wanted), len(given), 1)


@built_in("format", Place.INLINE, reads_answer=False)
def think_answer_format(_task: Task, response: str, *, low: float = 0.0) -> float:
    """Returns 1 for ``<think>...</think> <answer>...</answer>``: each tag once, nothing outside; else ``low``."""
    text = response.strip()
    places = [text.find(tag) for tag in _TAGS]
    whole = text.startswith(_TAGS[0]) and text.endswith(_TAGS[-1])
    once = all(text.count(tag) == 1 for tag in _TAGS)
    between = text[places[1] + len(_TAGS[1]) : places[2]]
    return 1.0 if whole and once and places == sorted(places) and not between.strip() else low


class PatternFormat:
    """Scores 1 if the pattern is found in the response (``.`` matches line ends too), else 0.

    A pattern may backtrack for ever, so this one belongs into a worker process.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, _task: Task, response: str) -> float:
        """Searches the response for the pattern."""
        return float(self._pattern.search(response) is not None)
