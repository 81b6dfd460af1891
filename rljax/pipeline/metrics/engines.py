"""Utilization of the engines, measured by the learner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Gauges = Callable[[], Mapping[str, float]]
"""Sums over the engines; at least ``busy_seconds`` and ``engines``."""

FORGET = 3.0
"""Seconds without news after which engines count as idle. Other processes renew their gauges once a second."""


class EngineMeter:
    """Measures the share of the time that an engine computes, on average over the engines.

    Gauges of another process are renewed more rarely than steps may end: between two readings that differ the share is
    taken to be constant.
    """

    def __init__(self, gauges: Gauges, now: Callable[[], float] = time.perf_counter) -> None:
        self._gauges = gauges
        self._now = now
        self._busy, self._at = self._read(), now()
        self._share = 0.0

    def share(self) -> float:
        """Returns the share in [0, 1], as of the last readings."""
        busy, now = self._read(), self._now()
        if busy != self._busy:
            # an explorer that joins or leaves moves the sum by its whole life
            self._share = min(max((busy - self._busy) / max(now - self._at, 1e-6), 0.0), 1.0)
            self._busy, self._at = busy, now
        elif now - self._at > FORGET:
            self._share = 0.0
        return self._share

    def _read(self) -> float:
        gauges = self._gauges()
        return gauges.get("busy_seconds", 0.0) / max(gauges.get("engines", 1.0), 1.0)
