"""Joins the parts of a trace into one file that Perfetto (https://ui.perfetto.dev) and chrome://tracing load.

The format is Chrome's Trace Event Format (JSON object form): times in microseconds, tracks named by metadata events.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljax.observe.metrics import read_json_lines
from rljax.observe.trace import PARTS

FILE = "trace.json"

Part = list[Any]
"""Phase, track, name, start (Unix ns), duration (ns), arguments; as in a part's lines."""

Track = tuple[str, str]
"""Names of process and thread in Perfetto."""


def merge_traces(run_dir: Path, limit: int | None = None) -> Path | None:
    """Writes ``trace.json`` out of the parts written so far; returns its path, None where there are no parts.

    ``limit`` keeps the newest events of all; those dropped are counted in ``otherData``. Times count from the first event.
    """
    tracks, dropped = _read_parts(Path(run_dir) / PARTS)
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
    path = Path(run_dir) / FILE
    staged = path.with_name(f".{FILE}.{os.getpid()}.tmp")
    other = {"dropped_events": dropped, "first_event_unix_seconds": origin / 1e9}
    with open(staged, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(other) + ',"traceEvents":[')
        for position, row in enumerate(_chrome_events(kept, origin)):
            file.write((",\n" if position else "\n") + json.dumps(row, ensure_ascii=False, separators=(",", ":")))
        file.write("\n]}\n")
    staged.replace(path)
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
    next_thread: dict[str, int] = defaultdict(lambda: 1)
    for process, thread in sorted(tracks, key=_order):
        pid = processes.setdefault(process, len(processes) + 1)
        if next_thread[process] == 1:
            yield _name("process_name", pid, 0, name=process)
            yield _name("process_sort_index", pid, 0, sort_index=pid)
        for lane, events in enumerate(_lanes(tracks[process, thread])):
            tid = next_thread[process]
            next_thread[process] += 1
            yield _name("thread_name", pid, tid, name=thread if lane == 0 else f"{thread} ({lane + 1})")
            yield _name("thread_sort_index", pid, tid, sort_index=tid)
            for event in events:
                yield _chrome_event(event, pid, tid, origin)


def _order(track: Track) -> tuple[bool, list[Any]]:
    process, thread = track
    words: list[Any] = []
    for word in re.split(r"(\d+)", f"{process}\0{thread}"):
        words.append((0, int(word), "") if word.isdigit() else (1, 0, word))
    return process.startswith("group "), words


def _lanes(events: list[Part]) -> list[list[Part]]:
    """Spreads spans that overlap without one holding the other: a track of Perfetto can only nest them."""
    lanes: list[list[Part]] = []
    open_ends: list[list[int]] = []
    for event in sorted(events, key=lambda e: (e[3], -e[4])):
        begin, end = event[3], event[3] + event[4]
        for lane, ends in zip(lanes, open_ends, strict=True):
            while ends and ends[-1] <= begin:
                ends.pop()
            if event[0] != "X" or not ends or end <= ends[-1]:
                break
        else:
            lane, ends = [], []
            lanes.append(lane)
            open_ends.append(ends)
        lane.append(event)
        if event[0] == "X":
            ends.append(end)
    return lanes


def _chrome_event(event: Part, pid: int, tid: int, origin: int) -> dict[str, Any]:
    phase, _, name, start, duration, args = event
    row = {"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": (start - origin) / 1000, "args": args}
    if phase == "X":
        row["dur"] = duration / 1000
        row["cat"] = "rljax"
    elif phase == "i":
        row["s"] = "t"
    return row


def _name(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
