"""A file of what an engine did when, written by the process that it has to itself.

Its lines are those of the parts of a run's trace: ``["X", track, name, start µs, duration µs, numbers]``, behind one
that names the process.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""Seconds that spans are kept before they are written, with the next one: a killed process loses those since."""


class SpanFile:
    """Takes spans from any thread, and writes them every few seconds. It is a `sidecar.stepping.jobs.Trace`.

    The newest are kept, between half of ``limit`` and ``limit`` of them, in files of which the older is deleted when
    the newer is full. A disk that refuses them ends the writing: an engine goes on without.
    """

    def __init__(self, path: str, role: str, track: str, limit: int) -> None:
        """Opens nothing yet. ``path`` names the files, whose number is put before its suffix; ``role`` is the process,
        ``track`` what the spans are on.
        """
        self._path = Path(path)
        self._role, self._track = role, track
        self._size = max(limit // 2, 1)
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._flushed = time.monotonic()
        self._number, self._written, self._dropped, self._failed = -1, 0, 0, False

    def __call__(self, name: str, begin: float, end: float, numbers: dict[str, float]) -> None:
        """Takes a span, in Unix seconds."""
        start = round(begin * 1e6)
        line = json.dumps(["X", self._track, name, start, max(round(end * 1e6) - start, 0), numbers])
        with self._lock:
            self._lines.append(line)
            if time.monotonic() - self._flushed >= FLUSH_SECONDS:
                self._flush()

    def close(self) -> None:
        """Writes what is left."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        lines, self._lines, self._flushed = self._lines, [], time.monotonic()
        if not lines or self._failed:
            return
        try:
            if self._number < 0 or self._written >= self._size:
                self._next()
            with open(self._file(self._number), "a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            self._failed = True
            log.warning("trace.json will miss what %s does: %s", self._role, error)
        self._written += len(lines)

    def _next(self) -> None:
        self._file(self._number - 1).unlink(missing_ok=True)
        self._dropped += self._written if self._number > 0 else 0
        self._number, self._written = self._number + 1, 0
        self._path.parent.mkdir(exist_ok=True)
        header = {"role": self._role, "pid": os.getpid(), "dropped": self._dropped}
        self._file(self._number).write_text(json.dumps(header) + "\n", encoding="utf-8")

    def _file(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
