"""Notifies threads and event loops of this process of changes in the ledger.

Changes made by other processes are found by looking again every `POLL` seconds. Where there is nothing to do, an
explorer's look takes no lock; see `rljax.ledger.claims.claim`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

POLL = 0.1
"""Seconds between looks for changes made by other processes."""


class Notifier:
    """Counts changes; threads and event loops can wait for the next one."""

    def __init__(self, poll: float = POLL) -> None:
        """Creates the notifier; ``poll`` in seconds is the longest wait: where no other process writes, any."""
        self._poll = poll
        self._condition = threading.Condition()
        self._changes = 0
        self._loops: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    @property
    def changes(self) -> int:
        """Changes seen so far; read it before looking, and pass it to `wait`."""
        return self._changes

    def notify(self) -> None:
        """Counts a change and wakes who waits. Any thread."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()
            loops = list(self._loops.items())
        for loop, changed in loops:
            with contextlib.suppress(RuntimeError):  # a loop that has closed meanwhile has no waiter
                loop.call_soon_threadsafe(changed.set)

    def wait(self, seen: int, timeout: float | None = None) -> None:
        """Blocks this thread until a change after ``seen``, at most ``timeout`` or else ``poll`` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._changes > seen, self._poll if timeout is None else timeout)

    async def wait_async(self, seen: int, at_most: float | None = None) -> None:
        """Suspends this task until a change after ``seen``, at most ``at_most`` or else ``poll`` seconds of its loop's
        clock.
        """
        loop = asyncio.get_running_loop()
        with self._condition:
            if self._changes > seen:
                return
            changed = self._loops.setdefault(loop, asyncio.Event())
            changed.clear()
        # not asyncio.wait_for: in Python 3.11 it loses a cancellation that comes together with the change
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll if at_most is None else at_most):
                await changed.wait()
