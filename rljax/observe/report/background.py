"""The report of a run that goes on, written beside it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

SHARE = 0.05
"""Share of the time that writing takes at most: of a long run, whose report takes seconds, it is written less often."""
CLOSE_SECONDS = 60.0
"""Seconds that closing waits for a report that is being written."""


class ReportThread:
    """Writes a report when it is asked to, on a thread of its own: training does not wait for it. Whatever it was asked
    for while it wrote, or rested, becomes one report.
    """

    def __init__(self, write: Callable[[], object], share: float = SHARE) -> None:
        """Starts nothing yet; ``write`` is called on the thread, and ``share`` is as of `SHARE`."""
        self._write = write
        self._share = share
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._warn = WarnOnce(log, "report.html is as it was before")

    def ask(self) -> None:
        """Asks for a report of now. Does not block."""
        self._asked.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="report", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, once what it writes is written; what it was asked for since is not."""
        self._closing.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                self._warn(f"it could not be written within {CLOSE_SECONDS:g} s")

    def _run(self) -> None:
        while self._asked.wait() and not self._closing.is_set():
            self._asked.clear()
            began = time.monotonic()
            try:
                self._write()
            except Exception as error:
                self._warn(error)
            self._closing.wait((time.monotonic() - began) * (1 / self._share - 1))
