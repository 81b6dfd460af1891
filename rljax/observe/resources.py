"""Resource gauges of the machine: host CPU and memory, and further sources given as callables."""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

MIB, GIB = 2**20, 2**30
STUCK_SECONDS = 15.0
"""Seconds after which a source that has not answered is named."""

Source = Callable[[], Mapping[str, float]]


class Resources:
    """Samples gauges from a thread of its own until it is closed.

    Built in: ``host/cpu_percent`` (of all cores), ``host/process_cpu_percent`` (of one core), ``host/memory_percent``,
    ``host/rss_mib``, and ``host/disk_free_gib`` where a ``run_dir`` is given. A source that raises is left out of that
    sample; one that hangs stops the sampling; either is logged once.
    """

    def __init__(
        self, sources: Mapping[str, Source] | None = None, run_dir: Path | None = None, seconds: float = 1.0
    ) -> None:
        """Starts the thread. ``sources`` by prefix: where ``f`` gives ``{"memory_mib": 3}``, ``{"device":
        f}`` makes device/memory_mib.
        """
        self._sources: dict[str, Source] = {"host": HostGauges(run_dir), **(sources or {})}
        self._warnings = {name: WarnOnce(log, f"gauges {name}/* are missing") for name in self._sources}
        self._seconds = seconds
        self._lock = threading.Lock()
        self._latest: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._asking: tuple[str, float] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resources", daemon=True)
        self._thread.start()

    def latest(self) -> dict[str, float]:
        """Returns the newest sample. Any thread; never waits for a source."""
        with self._lock:
            self._warn_of_stuck_source()
            return dict(self._latest)

    def take(self) -> dict[str, float]:
        """Returns means over the samples since the last call; the newest sample where there has been none."""
        with self._lock:
            self._warn_of_stuck_source()
            means = {name: total / count for name, (total, count) in self._sums.items()}
            self._sums = {}
            return self._latest | means

    def close(self) -> None:
        """Ends the sampling; a source that hangs is left behind."""
        self._closing.set()
        self._thread.join(1.0)

    def sample(self) -> None:
        """Samples every source now."""
        for name, source in self._sources.items():
            self._asking = (name, time.monotonic())
            try:
                found = {f"{name}/{key}": float(value) for key, value in source().items()}
            except Exception as error:
                self._warnings[name](error)
                continue
            finally:
                self._asking = None
            with self._lock:
                for key, value in found.items():
                    if math.isfinite(value):
                        self._latest[key] = value
                        total, count = self._sums.get(key, (0.0, 0))
                        self._sums[key] = (total + value, count + 1)

    def _run(self) -> None:
        while not self._closing.is_set():
            self.sample()
            self._closing.wait(self._seconds)

    def _warn_of_stuck_source(self) -> None:
        asking = self._asking
        if asking is not None and time.monotonic() - asking[1] > STUCK_SECONDS:
            self._warnings[asking[0]](f"gauges {asking[0]}/* have not answered for {STUCK_SECONDS:g} s")


class HostGauges:
    """Gauges of the host: CPU since the last call, and memory as of now."""

    def __init__(self, run_dir: Path | None = None) -> None:
        self._run_dir = run_dir
        self._process = psutil.Process()
        psutil.cpu_percent()  # the first reading of either is meaningless
        self._process.cpu_percent()

    def __call__(self) -> dict[str, float]:
        """Returns the gauges by name, without the prefix."""
        gauges = {
            "cpu_percent": psutil.cpu_percent(),
            "process_cpu_percent": self._process.cpu_percent(),
            "memory_percent": psutil.virtual_memory().percent,
            "rss_mib": self._process.memory_info().rss / MIB,
        }
        if self._run_dir is not None:
            gauges["disk_free_gib"] = shutil.disk_usage(self._run_dir).free / GIB
        return gauges
