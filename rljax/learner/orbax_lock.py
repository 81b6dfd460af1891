"""Lock of Orbax, which numbers its operations by a counter of the whole process: one save or load begins at a time.

The first of two at once waits for its own files at the number of the second: for five minutes, and fails. What goes on
in the background has taken its number before, and needs no lock. Hosts that save or load together wait for each other
at its number, which so has to be the same on all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator  # Orbax has no public name for it

SECONDS = 1200.0
"""Seconds that the one before may take: as many as a checkpoint has to be written in."""
_lock = threading.Lock()


def last_operation() -> int:
    """Returns the number of this process's last operation."""
    return int(OperationIdGenerator.get_current_operation_id())


def go_on_after(operation: int) -> None:
    """Has the next operation of this process follow number ``operation``, of a host that has had no fewer."""
    while last_operation() < operation:
        OperationIdGenerator.next_operation_id()


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
