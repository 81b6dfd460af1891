"""Reading of a run's trace: what was in flight, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljax.observe.metrics import read_json_lines
from rljax.observe.trace import PARTS

REQUESTS, COMPUTATION, ATTEMPTS, VERSIONS = " · requests", " · computation", " · attempts", " · versions"
LEDGER, LOOP, WAITS = " · ledger", " · loop", " · waits"
"""Ends of the names of tracks, behind an engine's or an explorer's."""


@dataclass(frozen=True, slots=True)
class Span:
    """Event of a trace, or several in flight together: track, name, start and end (Unix seconds), arguments."""

    track: str
    name: str
    start: float
    end: float
    args: dict[str, Any]

    @property
    def count(self) -> int:
        """Number of events that it stands for."""
        return int(self.args.get("count", 1))


def read_spans(run_dir: Path) -> Iterator[Span]:
    """Yields the events with a duration of all processes of a run; nothing where it kept no trace."""
    for path in sorted((run_dir / PARTS).glob("*.jsonl")):
        for line in read_json_lines(path):
            if isinstance(line, list) and len(line) == 6 and line[0] in ("X", "F"):
                _, track, name, start, duration, args = line
                yield Span(track, name, start / 1e6, (start + duration) / 1e6, args)
