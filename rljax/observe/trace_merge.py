"""Merging of a trace's parts into one file that Perfetto (https://ui.perfetto.dev) and chrome://tracing load.

The format is Chrome's Trace Event Format (JSON object form): times in microseconds, tracks named by metadata events.
What is in flight side by side is packed into as few lanes as there are at once.
"""

from __future__ import annotations

import heapq
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljax.observe.atomic_write import atomic_path
from rljax.observe.metrics import read_json_lines
from rljax.observe.trace import PARTS
from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

FILE = "trace.json"
FIRST_TID = 1_000_000
"""Beyond every pid: a thread whose id is its process's would pass for the main thread."""

Part = list[Any]
"""Phase, track, name, start (Unix µs), duration (µs), arguments; as in a part's lines."""

Track = tuple[str, str]
"""Names of process and thread in Perfetto."""


def merge_traces(run_dir: Path, limit: int | None = None) -> Path | None:
    """Writes ``trace.json`` out of the parts written so far; returns its path, None where there are no parts.

    ``limit`` keeps the newest events of all; those dropped are counted in ``otherData``. Times count from the first
    event. Parts or a trace that the disk refuses give a warning and None.
    """
    try:
        return _merge(Path(run_dir), limit)
    except OSError as error:
        WarnOnce(log, f"{Path(run_dir) / FILE} was not written")(error)
        return None


def _merge(run_dir: Path, limit: int | None) -> Path | None:
    tracks, dropped = _read_parts(run_dir / PARTS)
    if not tracks:
        return None
    events = sorted(((event, track) for track, found in tracks.items() for event in found), key=lambda pair: pair[0][3])
    if limit is not None and len(events) > limit:
        dropped += len(events) - limit
        events = events[-limit:]
    kept: dict[Track, list[Part]] = defaultdict(list)
    for event, track in events:
        kept[track].append(event)
    origin = events[0][0][3]
    path = run_dir / FILE
    other = {"dropped_events": dropped, "first_event_unix_seconds": origin / 1e6}
    with atomic_path(path) as draft, open(draft, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(other) + ',"traceEvents":[')
        for position, row in enumerate(_chrome_events(kept, origin)):
            file.write((",\n" if position else "\n") + json.dumps(row, ensure_ascii=False, separators=(",", ":")))
        file.write("\n]}\n")
    return path


def _read_parts(folder: Path) -> tuple[dict[Track, list[Part]], int]:
    tracks: dict[Track, list[Part]] = defaultdict(list)
    dropped: dict[str, int] = {}
    for path in sorted(folder.glob("*.jsonl")):
        role = path.name.split("-")[0]
        for line in read_json_lines(path):
            if isinstance(line, dict):
                role = line.get("role", role)
                part = path.name.split(".")[0]
                dropped[part] = max(dropped.get(part, 0), line.get("dropped", 0))
            elif isinstance(line, list) and len(line) == 6:
                process, _, thread = line[1].partition(" · ")
                tracks[(process, thread) if thread else (role, process)].append(line)
    return tracks, sum(dropped.values())


def _chrome_events(tracks: dict[Track, list[Part]], origin: int) -> Iterator[dict[str, Any]]:
    processes: dict[str, int] = {}
    tid = FIRST_TID
    for process, thread in sorted(tracks, key=_order):
        if process not in processes:
            pid = processes[process] = len(processes) + 1
            yield _name("process_name", pid, pid, name=process)
            yield _name("process_sort_index", pid, pid, sort_index=pid)
        pid = processes[process]
        for lane, events in enumerate(_lanes(tracks[process, thread])):
            tid += 1
            yield _name("thread_name", pid, tid, name=thread if lane == 0 else f"{thread} ({lane + 1})")
            yield _name("thread_sort_index", pid, tid, sort_index=tid)
            for event in events:
                yield _chrome_event(event, pid, tid, origin)


def _order(track: Track) -> list[Any]:
    words = re.split(r"(\d+)", "\0".join(track))
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in words]


def _lanes(events: list[Part]) -> list[list[Part]]:
    """Splits spans that overlap without one containing the other onto lanes: a track of Perfetto can only nest them."""
    if all(event[0] == "F" for event in events):
        return _packed(events)
    lanes: list[list[Part]] = []
    open_ends: list[list[int]] = []
    for event in sorted(events, key=lambda e: (e[3], -e[4])):
        begin, end = event[3], event[3] + event[4]
        for ends in open_ends:
            while ends and ends[-1] <= begin:
                ends.pop()
        fits = (i for i, ends in enumerate(open_ends) if event[0] != "X" or not ends or end <= ends[-1])
        lane = next(fits, len(lanes))
        if lane == len(lanes):
            lanes.append([])
            open_ends.append([])
        lanes[lane].append(event)
        if event[0] == "X":
            open_ends[lane].append(end)
    return lanes


def _packed(events: list[Part]) -> list[list[Part]]:
    """Packs what is in flight into the fewest lanes in which none overlaps: each takes the first that is free."""
    lanes: list[list[Part]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # by end
    for event in sorted(events, key=lambda e: (e[3], -e[4])):
        while busy and busy[0][0] <= event[3]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(lanes))
            lanes.append([])
        lane = heapq.heappop(free)
        lanes[lane].append(event)
        heapq.heappush(busy, (event[3] + event[4], lane))
    return lanes


def _chrome_event(event: Part, pid: int, tid: int, origin: int) -> dict[str, Any]:
    phase, _, name, start, duration, args = event
    row = {"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": start - origin, "args": args}
    if phase in ("X", "F"):
        row |= {"ph": "X", "dur": duration}
    elif phase == "i":
        row["s"] = "t"
    return row


def _name(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
