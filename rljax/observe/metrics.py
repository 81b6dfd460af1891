"""``metrics.jsonl``: one JSON object a step, in step order, written by the learner alone.

A row has ``step`` (batches completed), ``timestamp`` (Unix seconds of its first writing) and the metrics by name. A
value that is not finite is ``null``, so that every JSON reader can read the file.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljax.observe.atomic_write import atomic_path
from rljax.observe.tensorboard import TensorBoard
from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
PENDING_ROWS = 10_000
"""Rows kept in memory while the file cannot be written."""

Row = dict[str, Any]


class MetricsLog:
    """Writes metrics; any thread. A write that fails is logged once and tried again with the next one.

    Values written for a step that has a row are merged into it: the validation of a version may end when later steps
    have been written.
    """

    def __init__(self, run_dir: Path, tensorboard: bool = False) -> None:
        """Opens or creates the file in ``run_dir``; a torn or foreign line, as a crash leaves it, is removed."""
        self._path = Path(run_dir) / FILE
        self._lock = threading.Lock()
        self._warn = WarnOnce(log, f"{self._path} misses rows until it can be written again")
        self._not_numbers = WarnOnce(log, "it is null in metrics.jsonl")
        self._pending: deque[tuple[int, Row]] = deque(maxlen=PENDING_ROWS)
        self._steps: list[int] = []
        self._ends: list[int] = []  # where each step's line ends, in bytes
        self._tensorboard = TensorBoard(Path(run_dir) / TENSORBOARD) if tensorboard else None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            self._store(_read(self._path))
        except OSError as error:
            self._warn(error)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds the metrics of ``step``, batches completed; anything that is a number will do."""
        row = {name: self._number(name, value) for name, value in values.items() if name != "step"}
        with self._lock:
            self._pending.append((step, row))
            try:
                if self._ends and self._path.stat().st_size < self._ends[-1]:
                    self._store(_read(self._path))  # somebody else has cut the file
                while self._pending:
                    self._add(*self._pending[0])
                    self._pending.popleft()
            except OSError as error:
                self._warn(error)
        if self._tensorboard is not None:
            self._tensorboard.write(step, {name: value for name, value in row.items() if value is not None})

    def truncate(self, step: int) -> None:
        """Removes the rows of ``step`` and later: a learner resumed from ``n`` batches will write n + 1 again."""
        with self._lock:
            keep = [row for row in self._pending if row[0] < step]
            self._pending.clear()
            self._pending.extend(keep)
            try:
                self._store([row for row in _read(self._path) if row["step"] < step])
            except OSError as error:
                self._warn(error)
        if self._tensorboard is not None:
            self._tensorboard.purge(step)

    def close(self) -> None:
        """Ends TensorBoard's thread."""
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _number(self, name: str, value: Any) -> float | int | None:
        if isinstance(value, int):
            return int(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            self._not_numbers(f"metric {name} is no number: {value!r:.80}")
            return None
        return number if math.isfinite(number) else None

    def _add(self, step: int, values: Row) -> None:
        at = bisect_left(self._steps, step)
        begin = self._ends[at - 1] if at else 0
        exists = at < len(self._steps) and self._steps[at] == step
        row = {"step": step, "timestamp": round(time.time(), 3)}
        if at == len(self._steps):
            line = _line(row | values)
            _append(self._path, line, begin)
        else:
            data = self._path.read_bytes()
            old = json.loads(data[begin : self._ends[at]]) if exists else row
            line = _line(old | values)
            after = self._ends[at] if exists else begin
            _replace(self._path, data[:begin] + line + data[after:])
            grown = begin + len(line) - after
            self._ends[at:] = [end + grown for end in self._ends[at:]]
        if not exists:
            self._steps.insert(at, step)
            self._ends.insert(at, begin + len(line))

    def _store(self, rows: list[Row]) -> None:
        lines = [_line(row) for row in rows]
        data = b"".join(lines)
        if self._path.read_bytes() != data:
            _replace(self._path, data)
        self._steps = [row["step"] for row in rows]
        self._ends = []
        for line in lines:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(line))


def read_metrics(run_dir: Path) -> list[Row]:
    """Returns the rows of a run, by step; an empty list where there are none. A torn line is left out."""
    try:
        return _read(Path(run_dir) / FILE)
    except FileNotFoundError:
        return []


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yields the lines of a file that are JSON, decoded: a crash may have torn the last one."""
    with open(path, "rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _read(path: Path) -> list[Row]:
    rows: dict[int, Row] = {}
    for row in read_json_lines(path):
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows[row["step"]] = rows.get(row["step"], {}) | row
    return [rows[step] for step in sorted(rows)]


def _line(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _append(path: Path, line: bytes, size: int) -> None:
    """Appends in one write; a part of a line that a full disk left behind (beyond ``size``) is cut off first."""
    with open(path, "ab", buffering=0) as file:
        if file.tell() > size:
            file.truncate(size)
        if file.write(line) != len(line):
            raise OSError(f"{path}: only a part of a row could be written; is the disk full?")


def _replace(path: Path, data: bytes) -> None:
    with atomic_path(path) as draft:
        draft.write_bytes(data)
