"""Lock of Orbax, which numbers its operations by a counter of the whole process: one save or load begins at a time.

The first of two at once waits for its own files at the number of the second: for five minutes, and fails. What goes on
in the background has taken its number before, and needs no lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

SECONDS = 1200.0
"""Seconds that the one before may take: as many as a checkpoint has to be written in."""
_lock = threading.Lock()


@contextlib.contextmanager
def alone_in_orbax() -> Iterator[None]:
    """Keeps other saves and loads of this process from beginning while the context lasts.

    Raises:
        TimeoutError: the one before did not end in time.
    """
    if not _lock.acquire(timeout=SECONDS):
        raise TimeoutError(f"waited {SECONDS:g} s for another save or load of this process's to end")
    try:
        yield
    finally:
        _lock.release()
