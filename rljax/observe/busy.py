"""Time that an event loop or a thread is busy, in few spans: of the many short pieces of a moment the sum."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

MOMENT = 0.2
"""Seconds whose pieces become one span."""

Noted = Callable[[float, float, float], None]
"""Takes start and end of a piece, in Unix seconds, and its thread's CPU seconds in it. Pieces follow each other."""


class Gathered:
    """Records pieces of time that do not overlap: those that begin within `MOMENT` as one span, from the start of the
    first on, as long as all of them. So their seconds are exact, and when they were to that moment.
    """

    def __init__(self, record: Noted) -> None:
        """Hands the spans to ``record``."""
        self._record = record
        self._begin, self._seconds, self._used = 0.0, 0.0, 0.0

    def add(self, begin: float, end: float, used: float) -> None:
        """Adds a piece that follows those before it."""
        if begin - self._begin >= MOMENT:
            self.flush()
            self._begin = begin
        self._seconds += end - begin
        self._used += used

    def flush(self) -> None:
        """Records what is gathered."""
        if self._seconds > 0:
            self._record(self._begin, self._begin + self._seconds, self._used)
        self._seconds = self._used = 0.0


class TimedSelector(selectors.DefaultSelector):
    """Selector of an event loop that notes how long the loop ran between two looks for what is ready."""

    def __init__(self, noted: Noted) -> None:
        """Hands each piece to ``noted``, on the loop's thread."""
        super().__init__()
        self._noted = noted
        self._since, self._used = time.time(), time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        """See `selectors.BaseSelector.select`."""
        self._noted(self._since, time.time(), time.thread_time() - self._used)
        found = super().select(timeout)
        self._since, self._used = time.time(), time.thread_time()
        return found
