"""Seconds of the parts of a step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PARTS = ("wait", "lease", "train", "publish", "checkpoint", "report")
"""Parts of a step that have a metric each; the last is of the row before, which is written as the step begins."""


@dataclass
class Clock:
    """Measures the seconds of each part of one step."""

    began: float = field(default_factory=time.perf_counter)
    spent: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, since: float) -> float:
        """Adds the time since ``since`` (perf_counter) to ``name``; returns now."""
        now = time.perf_counter()
        self.spent[name] = self.spent.get(name, 0.0) + now - since
        return now
