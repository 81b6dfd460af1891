"""TensorBoard events, written from a thread of their own: a slow or full disk costs curves, never a step."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

QUEUE_ROWS = 1000
"""Rows that may wait for the disk before new ones are lost."""

CLOSE_SECONDS = 30.0
"""Seconds that closing waits for the last rows; on a busy machine the import alone can take ten."""


class TensorBoard:
    """Writes scalars as TensorBoard events under ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._warn = WarnOnce(log, "TensorBoard misses scalars, metrics.jsonl has them")
        self._queue: queue.Queue[tuple[str, int, float, Mapping[str, float]]] = queue.Queue(QUEUE_ROWS)
        self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Queues the scalars of one step."""
        self._put("write", step, values)

    def purge(self, step: int) -> None:
        """Hides what was written for ``step`` and later, by an earlier process too."""
        self._put("purge", step, {})

    def close(self) -> None:
        """Writes what is queued and ends, within `CLOSE_SECONDS`."""
        self._put("close", 0, {})
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"TensorBoard did not end within {CLOSE_SECONDS:g} s")

    def _put(self, what: str, step: int, values: Mapping[str, float]) -> None:
        try:
            self._queue.put_nowait((what, step, time.time(), values))
        except queue.Full:
            self._warn(f"{QUEUE_ROWS} rows wait for {self._directory}")

    def _run(self) -> None:
        writer: Any = None
        while True:
            what, step, at, values = self._queue.get()
            try:
                if writer is not None and what != "write":
                    writer.close()
                    writer = None
                if what == "close":
                    return
                writer = writer or self._open(step if what == "purge" else None)
                for name, value in values.items():
                    if math.isfinite(value):
                        writer.add_scalar(name, value, step, walltime=at)
            except Exception as error:
                self._warn(error)
                if what == "close":
                    return

    def _open(self, purge_step: int | None) -> Any:
        # Imported here: it takes seconds where torch is installed.
        from tensorboardX import SummaryWriter

        # Of two writers that open within one second, the second would overwrite the first without a suffix.
        suffix = f".{time.time_ns()}"
        return SummaryWriter(str(self._directory), purge_step=purge_step, flush_secs=10, filename_suffix=suffix)
