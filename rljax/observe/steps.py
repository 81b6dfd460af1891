"""The steps of a run beside its trace: which are like others, when they were, and how long something covers them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rljax.observe.metrics import Row
from rljax.observe.trace_read import Span

ODD = 3.0
"""Times of the median beyond which a step is unlike others."""
VALIDATION = "validate "
"""Beginning of the name of a validation's span."""

Window = tuple[float, float]
"""Start and end, in Unix seconds."""


def window(row: Row) -> Window:
    """Returns when a step was, by its row of the metrics."""
    return row["timestamp"] - row["time/step"], row["timestamp"]


def undisturbed(rows: Sequence[Row], spans: Sequence[Span]) -> list[Row]:
    """Returns the steps that are like others: no program of the learner's is compiled in them, no validation goes on
    beside them, and they take at most `ODD` times the median, as one does in which an engine compiles.
    """
    validations = [(s.start, s.end) for s in spans if s.name.startswith(VALIDATION)]

    def beside(row: Row) -> bool:
        begin, end = window(row)
        return any(s < end and begin < e for s, e in validations)

    like = [row for row in rows if not row.get("compile/programs") and not beside(row)]
    middle = float(np.median([row["time/step"] for row in like])) if like else 0.0
    return [row for row in like if row["time/step"] <= ODD * middle]


def traced(rows: Sequence[Row], spans: Sequence[Span]) -> list[Row]:
    """Returns the steps in which any of these spans was: a trace keeps the newest events of each process, also of each
    life of a run.
    """
    cover = Cover((s.start, s.end) for s in spans)
    return [row for row in rows if cover.within([window(row)])]


class Cover:
    """Times that any of some intervals cover, however they nest and overlap."""

    def __init__(self, intervals: Iterable[Window] = ()) -> None:
        """Takes intervals of start and end, in any order. One that ends before it starts covers nothing."""
        merged: list[list[float]] = []
        for start, end in sorted(intervals):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif end > start:
                merged.append([start, end])
        table = np.array(merged, np.float64).reshape(-1, 2)
        self._starts, self._ends = table[:, 0], table[:, 1]
        self._before = np.concatenate([[0.0], np.cumsum(self._ends - self._starts)])

    def __or__(self, other: Cover) -> Cover:
        """Returns the times that either covers."""
        return Cover([*self.intervals(), *other.intervals()])

    def __and__(self, other: Cover) -> Cover:
        """Returns the times that both cover."""
        mine, theirs = self.intervals(), other.intervals()
        found: list[Window] = []
        while mine and theirs:
            found.append((max(mine[-1][0], theirs[-1][0]), min(mine[-1][1], theirs[-1][1])))
            (mine if mine[-1][0] > theirs[-1][0] else theirs).pop()
        return Cover(found)

    def __sub__(self, other: Cover) -> Cover:
        """Returns the times that this one covers and the other does not."""
        theirs = other.intervals()
        edges = [-np.inf, *(edge for interval in theirs for edge in interval), np.inf]
        return self & Cover(zip(edges[::2], edges[1::2], strict=True))

    def intervals(self) -> list[Window]:
        """Returns what is covered as intervals that do not touch, in order."""
        return list(zip(self._starts.tolist(), self._ends.tolist(), strict=True))

    def until(self, times: np.ndarray) -> np.ndarray:
        """Returns the seconds that are covered before each of these times."""
        begun = np.searchsorted(self._starts, times, side="right")
        if not len(self._ends):
            return np.zeros(np.shape(times))
        last = self._ends[np.maximum(begun - 1, 0)]
        return self._before[begun] - np.where(begun > 0, np.maximum(last - times, 0.0), 0.0)

    def within(self, windows: Sequence[Window]) -> float:
        """Returns the seconds of the windows that are covered."""
        begins, ends = np.array(windows, np.float64).reshape(-1, 2).T
        return float(np.sum(self.until(ends) - self.until(begins)))
