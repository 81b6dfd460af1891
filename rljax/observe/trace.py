"""Traces of a run's time, as spans on tracks, in parts that `merge_traces` joins into ``trace.json`` for Perfetto.

Times are Unix seconds (``time.time()``), the one clock that the processes of a run share. A track named ``A · B``
becomes thread ``B`` of process ``A`` in Perfetto (``explorer engine 0 · requests``); any other is a thread of the
process named by the role. Each process of a run writes a part of its own: JSON lines, appended every few seconds, so
that a killed process loses no more than those.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import Any, TextIO

from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

PARTS = "trace"
CLOSE_SECONDS = 10.0
"""Seconds that closing waits for the last events to reach the disk."""
TOGETHER = 0.1
"""Of one name, what begins and what ends within this share of its time is drawn as one."""

Event = tuple[str, str, str, float, float, dict[str, Any]]
"""Phase (X span, F in flight, i instant, C counter), track, name, start, end, arguments."""


def part_path(run_dir: Path, role: str) -> Path:
    """Returns the path of a new part of this process. A resumed run adds parts to those of before; a
    reused pid collides with none.
    """
    return Path(run_dir) / PARTS / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', role)}-{os.getpid()}-{time.time_ns():x}.jsonl"


class NullTrace:
    """Ignores all events: the `Trace` of a run without one."""

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Does nothing."""

    def in_flight(self, track: str, name: str, start: float, end: float, **args: float) -> None:
        """Does nothing."""

    def instant(self, track: str, name: str, at: float, **args: Any) -> None:
        """Does nothing."""

    def counter(self, track: str, at: float, **values: float) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class Trace:
    """Records events from any thread, at the cost of an append; a thread of its own writes them to disk.

    The newest events are kept, between half of ``limit`` and ``limit`` of them: the part is written in two segments,
    and the older one is deleted when the newer is full. The merged trace says how many were dropped.
    """

    def __init__(self, path: Path, limit: int, role: str = "", flush_seconds: float = 5.0) -> None:
        """Starts the writing thread; ``path`` as of `part_path`; ``role`` names the process in Perfetto (default:
        how the file's name starts).
        """
        self._path = Path(path)
        self._role = role or self._path.stem.split("-")[0]
        self._segment_events = max(limit // 2, 1)
        self._limit = limit
        self._events: list[Event] = []
        self._lost = 0
        self._lost_written = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._segment = -1
        self._written: dict[int, int] = {}
        self._warn = WarnOnce(log, f"trace.json will miss events of {self._role}")
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(flush_seconds,), name=f"trace {self._role}", daemon=True
        )
        self._thread.start()

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Records a span from ``start`` to ``end``."""
        self._append(("X", track, name, start, end, args))

    def in_flight(self, track: str, name: str, start: float, end: float, **args: float) -> None:
        """Records one of many that are in flight side by side: Perfetto has as many lanes of the track as there are at
        once. Those of one name that begin and end together, as `bundled` says, become one span.
        """
        self._append(("F", track, name, start, end, args))

    def instant(self, track: str, name: str, at: float, **args: Any) -> None:
        """Records an event without duration."""
        self._append(("i", track, name, at, at, args))

    def counter(self, track: str, at: float, **values: float) -> None:
        """Records values of gauges; each is drawn as a curve."""
        self._append(("C", track, track, at, at, values))

    def flush(self) -> None:
        """Writes the recorded events to disk. A failure is logged once and the events are dropped."""
        with self._writing:
            with self._lock:
                events, self._events = self._events, []
            events = bundled(events)
            try:
                for begin in range(0, len(events), self._segment_events):
                    self._store(events[begin : begin + self._segment_events])
            except OSError as error:
                self._lost += len(events)
                self._warn(error)

    def close(self) -> None:
        """Writes the last events and ends, within `CLOSE_SECONDS`."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"{self._path} could not be written within {CLOSE_SECONDS:g} s")

    def _append(self, event: Event) -> None:
        with self._lock:
            if len(self._events) < self._limit:
                self._events.append(event)
            else:
                self._lost += 1

    def _run(self, flush_seconds: float) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(flush_seconds)
            self.flush()

    def _store(self, events: list[Event]) -> None:
        full = self._written.get(self._segment, 0) + len(events) > self._segment_events
        if self._segment < 0 or full:
            self._next_segment()
        with open(self._segment_path(self._segment), "a", encoding="utf-8") as file:
            _write_events(file, events)
            if self._lost != self._lost_written:
                file.write(self._header())
        self._written[self._segment] = self._written.get(self._segment, 0) + len(events)

    def _next_segment(self) -> None:
        old = self._segment - 1
        if old in self._written:
            self._segment_path(old).unlink(missing_ok=True)
            self._lost += self._written.pop(old)
        self._segment += 1
        self._path.parent.mkdir(exist_ok=True)
        self._segment_path(self._segment).write_text(self._header(), encoding="utf-8")

    def _header(self) -> str:
        self._lost_written = self._lost
        return json.dumps({"role": self._role, "pid": os.getpid(), "dropped": self._lost}) + "\n"

    def _segment_path(self, segment: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.{segment}{self._path.suffix}")


def bundled(events: list[Event]) -> list[Event]:
    """Returns the events with those in flight together made one: of one track and name, whose starts differ by at most
    `TOGETHER` of the first one's time, and so do their ends. It lasts from the earliest start to the latest end; its
    arguments are means, and ``count`` how many they are of.
    """
    rest = [event for event in events if event[0] != "F"]
    named: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in sorted((event for event in events if event[0] == "F"), key=lambda event: event[3]):
        named[event[1], event[2]].append(event)
    return rest + [_as_one(bundle) for alike in named.values() for bundle in _bundles(alike)]


def _bundles(events: list[Event]) -> Iterator[list[Event]]:
    while events:
        start, end = events[0][3:5]
        near = TOGETHER * (end - start)
        together = [event[3] - start <= near and abs(event[4] - end) <= near for event in events]
        yield list(compress(events, together))
        events = [event for event, inside in zip(events, together, strict=True) if not inside]


def _as_one(events: list[Event]) -> Event:
    phase, track, name, start, _, args = events[0]
    count = len(events)
    means = {key: round(sum(event[5].get(key, 0) for event in events) / count, 4) for key in args}
    return phase, track, name, start, max(event[4] for event in events), {"count": count, **means}


def _write_events(file: TextIO, events: list[Event]) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode
    for phase, track, name, start, end, args in events:
        begin, finish = round(start * 1e6), round(end * 1e6)
        try:
            line = encode([phase, track, name, begin, max(finish - begin, 0), args])
        except ValueError:  # a value that JSON does not know: not finite
            line = encode([phase, track, name, begin, max(finish - begin, 0), {k: _plain(v) for k, v in args.items()}])
        file.write(line + "\n")


def _plain(value: Any) -> Any:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)
