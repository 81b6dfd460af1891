"""Tells of steps in a row whose rewards do not differ, from which nothing can be learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

STEPS = 10
"""Steps in a row after which somebody should look."""
FIRST = 3
"""Steps in a row after which a run is told of them for the first time: it may be its reward that does not work."""

_ALL_ZERO = (
    "every reward was 0, so that nothing tells a better answer from a worse one. Read samples/: are answers in the "
    "form that the reward looks for, and not cut off (response/cut_off)? Call the reward with a right one. If that "
    "gets more than 0, begin with easier tasks, or with a model that solves a few"
)
_ALL_EQUAL = (
    "in every group all rewards were equal, from which an advantage that compares a group's members learns nothing. "
    "Read samples/: if answers are alike, raise sidecar.generating_args.temperature; if all tasks are solved or none "
    "is, take harder or easier ones; if they differ, look at the reward"
)


@dataclass(frozen=True)
class FlatStreak:
    """Steps in a row, ``first`` to ``last``, of whose groups none had rewards that differ; ``zero``: all were 0."""

    first: int
    last: int
    zero: bool

    @property
    def steps(self) -> int:
        """Number of them."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        """Returns what it means and where to look, in one line."""
        return f"steps {self.first} to {self.last}: {_ALL_ZERO if self.zero else _ALL_EQUAL}"


class FlatRewards:
    """Counts such steps while they come."""

    def __init__(self, group_size: int) -> None:
        """Takes the trajectories of a group: where that is 1, a batch whose rewards are all equal is flat."""
        self._name, self._flat = ("reward/flat_groups", 1.0) if group_size > 1 else ("reward/std", 0.0)
        self._streak: FlatStreak | None = None
        self._told = False

    def news(self, step: int, metrics: Mapping[str, Any]) -> FlatStreak | None:
        """Takes the metrics of a step, as `add`; returns its streak where that is to be told: at `STEPS` steps, and the
        first one at `FIRST`.
        """
        streak = self.add(step, metrics)
        if streak is None or streak.steps not in ((STEPS,) if self._told else (FIRST, STEPS)):
            return None
        self._told = True
        return streak

    def add(self, step: int, metrics: Mapping[str, Any]) -> FlatStreak | None:
        """Takes the metrics of a step; returns the streak that it belongs to. A step that teachers have something
        learnt from belongs to none.
        """
        if metrics.get(self._name) != self._flat or any(name.startswith("distill/") for name in metrics):
            self._streak = None
            return None
        zero = metrics.get("reward/mean") == 0.0 == metrics.get("reward/std")
        if self._streak is None:
            self._streak = FlatStreak(step, step, zero)
        else:
            self._streak = replace(self._streak, last=step, zero=self._streak.zero and zero)
        return self._streak


def flat_streaks(rows: Iterable[Mapping[str, Any]], group_size: int) -> list[FlatStreak]:
    """Returns the streaks of `STEPS` steps or more among the rows of ``metrics.jsonl``, in order."""
    found: dict[int, FlatStreak] = {}
    flat = FlatRewards(group_size)
    for row in rows:
        if row["step"] and (streak := flat.add(row["step"], row)) and streak.steps >= STEPS:
            found[streak.first] = streak
    return list(found.values())
