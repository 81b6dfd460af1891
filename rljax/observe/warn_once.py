"""Warnings of observers, which neither stop the run nor fail in silence."""

from __future__ import annotations

import logging
import threading


class WarnOnce:
    """Logs the first failure of an observer and counts the ones after it."""

    def __init__(self, log: logging.Logger, consequence: str) -> None:
        """Creates the warning; ``consequence`` says what is lost, such as ``trace.json will have a hole``."""
        self._log = log
        self._consequence = consequence
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, error: object) -> None:
        """Logs ``error`` if it is the first. May be called from any thread."""
        with self._lock:
            self.count += 1
            first = self.count == 1
        if first:
            what = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
            self._log.warning("%s; %s (said once)", what, self._consequence)
