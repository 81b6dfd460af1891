"""Curves for other programs: TensorBoard, Weights & Biases. Each is written to from a thread of its own: a slow disk or
network costs curves, never a step.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

QUEUE_ROWS = 1000
"""Rows that may wait for the disk before new ones are lost."""

CLOSE_SECONDS = 30.0
"""Seconds that closing waits for the last rows; on a busy machine the import alone can take ten."""

BINS = 30
"""Bins of a histogram, whatever it is of: some hundred bytes a step."""
TEXT_CHARACTERS = 4000
"""Characters kept of a text."""


@dataclass(frozen=True)
class Entry:
    """Values of a step.

    Attributes:
        step: batches completed.
        at: seconds since 1970.
        scalars: finite numbers by name.
        histograms: values by name, of which the distribution is shown.
        texts: plain texts by name.
    """

    step: int
    at: float
    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, np.ndarray] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """Takes entries, on one thread."""

    def write(self, entry: Entry) -> None:
        """Writes what is known of a step; there may be several entries of one, and later ones of earlier steps."""

    def purge(self, step: int) -> None:
        """Hides what was written for ``step`` and later, by an earlier process too, where that can be."""

    def close(self) -> None:
        """Writes what is left, and ends."""


class Tracker:
    """Hands entries to a sink on a thread, which opens it too. Its failures cost curves only, and are said once."""

    def __init__(self, name: str, open: Callable[[], Sink]) -> None:
        """Starts the thread; ``name`` is for messages."""
        self._name = name
        self._open = open
        self._warn = WarnOnce(log, f"{name} misses values, metrics.jsonl has them")
        self._queue: queue.Queue[Callable[[Sink], None]] = queue.Queue(QUEUE_ROWS)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(
        self,
        step: int,
        scalars: Mapping[str, float] | None = None,
        histograms: Mapping[str, np.ndarray] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Queues what is known of a step."""
        cut = {name: text[:TEXT_CHARACTERS] for name, text in (texts or {}).items()}
        entry = Entry(step, time.time(), scalars or {}, histograms or {}, cut)
        self._put(lambda sink: sink.write(entry))

    def purge(self, step: int) -> None:
        """Hides what was written for ``step`` and later, where that can be."""
        self._put(lambda sink: sink.purge(step))

    def close(self) -> None:
        """Writes what is queued and ends, within `CLOSE_SECONDS`."""
        self._put(self._close)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"{self._name} did not end within {CLOSE_SECONDS:g} s")

    def _close(self, sink: Sink) -> None:
        self._closed = True
        sink.close()

    def _put(self, action: Callable[[Sink], None]) -> None:
        try:
            self._queue.put_nowait(action)
        except queue.Full:
            self._warn(f"{QUEUE_ROWS} rows wait for {self._name}")

    def _run(self) -> None:
        sink: Sink | None = None
        while not self._closed:
            action = self._queue.get()
            try:
                sink = sink or self._open()
                action(sink)
            except Exception as error:
                self._warn(error)
                self._closed |= action == self._close
