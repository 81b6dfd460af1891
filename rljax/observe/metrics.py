"""``metrics.jsonl``: one JSON object a step, in step order, written by the learner alone.

A row has ``step`` (batches completed), ``timestamp`` (Unix seconds of its first writing) and the metrics by name. A
value that is not finite is ``null``, so that every JSON reader can read the file.

A learner that takes over puts a new file in the place of its predecessor's. Each writes to the file that it put there,
which it holds open, and never to whatever has the name by now: a predecessor that was stopped and continues appends to
a file without a name, and one that replaces the file in that very moment has its own replaced by the next row.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rljax.observe.atomic_write import atomic_path
from rljax.observe.tracking import Tracker
from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
PENDING_ROWS = 10_000
"""Rows kept in memory while the file cannot be written."""

Row = dict[str, Any]


class MetricsLog:
    """Writes metrics; any thread. A write that fails is logged once and tried again with the next one.

    Values written for a step that has a row are merged into it: the validation of a version may end when later steps
    have been written.
    """

    def __init__(self, run_dir: Path, trackers: Sequence[Tracker] = ()) -> None:
        """Opens the log of ``run_dir``; nothing is written before the first row or `truncate`. Rows go to ``trackers``
        too.
        """
        self._path = Path(run_dir) / FILE
        self._lock = threading.Lock()
        self._warn = WarnOnce(log, f"{self._path} misses rows until it can be written again")
        self._not_numbers = WarnOnce(log, "it is null in metrics.jsonl")
        self._pending: deque[tuple[int, Row]] = deque(maxlen=PENDING_ROWS)
        self._file: BinaryIO | None = None  # what this object has put in place, unbuffered
        self._steps: list[int] = []
        self._ends: list[int] = []  # where each step's line ends, in bytes
        self._cut: float = math.inf  # the first step of a lost history whose rows may still be in the file
        self._may_write: Callable[[], None] = lambda: None
        self._trackers = trackers

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds the metrics of ``step``, batches completed; anything that is a number will do.

        Raises:
            Exception: what the ``may_write`` of `truncate` raises; nothing is written.
        """
        self._may_write()
        row = {name: self._number(name, value) for name, value in values.items() if name != "step"}
        with self._lock:
            self._pending.append((step, row))
            try:
                self._hold_place()
                while self._pending:
                    self._add(*self._pending[0])
                    self._pending.popleft()
            except OSError as error:
                self._warn(error)
        for tracker in self._trackers:
            tracker.write(step, {name: value for name, value in row.items() if value is not None})

    def truncate(self, step: int, may_write: Callable[[], None] = lambda: None) -> None:
        """Takes the file over, without the rows of ``step`` and later: a learner resumed from ``n`` batches will write
        n + 1 again. A torn or foreign line, as a crash leaves it, is removed.

        ``may_write`` is asked before every row and every replacement; it raises once another learner has taken over.
        """
        self._may_write = may_write
        with self._lock:
            keep = [row for row in self._pending if row[0] < step]
            self._pending.clear()
            self._pending.extend(keep)
            self._cut = step
            self._close_file()
            try:
                self._take_over()
            except OSError as error:
                self._warn(error)
        for tracker in self._trackers:
            tracker.purge(step)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._close_file()

    def _number(self, name: str, value: Any) -> float | int | None:
        if isinstance(value, int):
            return int(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            self._not_numbers(f"metric {name} is no number: {value!r:.80}")
            return None
        return number if math.isfinite(number) else None

    def _hold_place(self) -> None:
        """Puts this object's file back where it has been replaced; takes over a file that somebody else has cut."""
        if self._file is None:
            self._take_over()
            return
        mine = os.fstat(self._file.fileno())
        if not _is_at(self._path, mine):
            self._replace(self._content())
        elif self._ends and mine.st_size < self._ends[-1]:
            self._store(_read(self._path))

    def _take_over(self) -> None:
        """Puts this object's file in place of the one that is there, with its rows before the cut."""
        self._store([row for row in read_metrics(self._path.parent) if row["step"] < self._cut])
        self._cut = math.inf

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, step: int, values: Row) -> None:
        at = bisect_left(self._steps, step)
        begin = self._ends[at - 1] if at else 0
        exists = at < len(self._steps) and self._steps[at] == step
        row = {"step": step, "timestamp": round(time.time(), 3)}
        if at == len(self._steps):
            line = _line(row | values)
            assert self._file is not None  # `_hold_place` comes first
            _append(self._file, line, begin)
        else:
            data = self._content()
            old = json.loads(data[begin : self._ends[at]]) if exists else row
            line = _line(old | values)
            after = self._ends[at] if exists else begin
            self._replace(data[:begin] + line + data[after:])
            grown = begin + len(line) - after
            self._ends[at:] = [end + grown for end in self._ends[at:]]
        if not exists:
            self._steps.insert(at, step)
            self._ends.insert(at, begin + len(line))

    def _content(self) -> bytes:
        assert self._file is not None
        return os.pread(self._file.fileno(), self._ends[-1] if self._ends else 0, 0)

    def _store(self, rows: list[Row]) -> None:
        lines = [_line(row) for row in rows]
        self._replace(b"".join(lines))
        self._steps = [row["step"] for row in rows]
        self._ends = []
        for line in lines:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(line))

    def _replace(self, data: bytes) -> None:
        with atomic_path(self._path) as draft:
            file = open(draft, "w+b", buffering=0)  # noqa: SIM115  (it stays open, under its later name)
            try:
                _append(file, data, 0)
                self._may_write()
            except BaseException:
                file.close()
                raise
        self._close_file()
        self._file = file


class MetricsReader:
    """Reads the rows of a run that another process writes: what has been read is not read again."""

    def __init__(self, run_dir: Path) -> None:
        self._path = Path(run_dir) / FILE
        self._file: BinaryIO | None = None  # stays open: so no later file can have its number
        self._rows: dict[int, Row] = {}

    def rows(self) -> list[Row]:
        """Returns the rows by step, as `read_metrics` does."""
        if self._file is None or self._is_another(self._file):
            self.close()
            try:
                self._file = open(self._path, "rb")  # noqa: SIM115  (see above)
            except FileNotFoundError:
                return []
        whole = self._file.tell()
        for line in self._file:
            if not line.endswith(b"\n"):  # it is being written
                break
            whole += len(line)
            _merge(self._rows, line)
        self._file.seek(whole)
        return [self._rows[step] for step in sorted(self._rows)]

    def close(self) -> None:
        """Closes the file; the next look begins anew."""
        if self._file is not None:
            self._file.close()
        self._file, self._rows = None, {}

    def _is_another(self, file: BinaryIO) -> bool:
        mine = os.fstat(file.fileno())
        return mine.st_size < file.tell() or not _is_at(self._path, mine)


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
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _read(path: Path) -> list[Row]:
    rows: dict[int, Row] = {}
    with open(path, "rb") as file:
        for line in file:
            _merge(rows, line)
    return [rows[step] for step in sorted(rows)]


def _merge(rows: dict[int, Row], line: bytes) -> None:
    with contextlib.suppress(ValueError):
        row = json.loads(line)
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows[row["step"]] = rows.get(row["step"], {}) | row


def _line(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _append(file: BinaryIO, data: bytes, size: int) -> None:
    """Appends in one write; a part of a line that a full disk left behind (beyond ``size``) is cut off first."""
    if file.seek(0, os.SEEK_END) > size:
        file.truncate(size)
        file.seek(size)
    if file.write(data) != len(data):
        raise OSError(f"{file.name}: only a part of it could be written; is the disk full?")


def _is_at(path: Path, file: os.stat_result) -> bool:
    """Returns whether the path still leads to that very file."""
    try:
        return os.path.samestat(path.stat(), file)
    except FileNotFoundError:
        return False
