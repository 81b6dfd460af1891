"""Limits the time of waits for others: seconds in which our own event loop was stalled are not counted.

Where a callback holds the loop up, or the machine stops us, answers lie unread until it goes on. A plain
``asyncio.timeout`` that has run out by then would blame a peer that answered in time. `ProgressTimeout` is for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

TICK = 0.125
"""Seconds between looks whether the event loop still runs. One that comes by more than that too late shows a stall."""


class _StallMonitor:
    """Measures how long an event loop was stalled, by how late its own ticks come; ticks while there is a limit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.proxy(loop)
        self._lost = 0.0
        self._limits = 0
        self._due = 0.0
        self._tick: asyncio.TimerHandle | None = None

    @property
    def lost(self) -> float:
        """Seconds stalled so far, a just ended stall included; of each rather a tick too many than one too few."""
        late = self._loop.time() - self._due if self._limits else 0.0
        return self._lost + (late + TICK if late > TICK else 0.0)

    def enter(self) -> None:
        """Counts one more limit."""
        if not self._limits:
            self._schedule()
        self._limits += 1

    def leave(self) -> None:
        """Counts one limit less."""
        self._limits -= 1
        if not self._limits and self._tick is not None:
            self._tick.cancel()
            self._tick = None  # it holds the loop, which holds this monitor

    def _ticked(self) -> None:
        self._lost = self.lost
        self._schedule()

    def _schedule(self) -> None:
        self._due = self._loop.time() + TICK
        self._tick = self._loop.call_at(self._due, self._ticked)


_monitors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _StallMonitor] = weakref.WeakKeyDictionary()


class Limit:
    """A running time limit, made by `timeout`."""

    def __init__(self, seconds: float, inner: asyncio.Timeout, monitor: _StallMonitor) -> None:
        self._loop = asyncio.get_running_loop()
        self._inner = inner
        self._monitor = monitor
        self._left = seconds
        self._lost = 0.0
        self._end: asyncio.TimerHandle | None = None
        self.resume()

    def expired(self) -> bool:
        """Returns whether the limit has expired."""
        return self._inner.expired()

    def pause(self) -> None:
        """Stops the clock of the limit."""
        if self._end is not None:
            end = self._end.when() + self._monitor.lost - self._lost
            self._left = max(0.0, end - self._loop.time())
            self._end.cancel()
            self._end = None

    def resume(self) -> None:
        """Starts the clock again, with the seconds that were left."""
        if self._end is None and self._inner.when() is None:
            self._lost = self._monitor.lost
            self._end = self._loop.call_later(self._left, self._ended)

    def _ended(self) -> None:
        self.pause()
        if self._left > 0.0:
            self.resume()
        else:
            self._inner.reschedule(self._loop.time())


@contextlib.asynccontextmanager
async def timeout(seconds: float, key: str = "") -> AsyncIterator[Limit]:
    """Raises TimeoutError in the body once it has run for ``seconds``, stalls of the event loop not counted.

    Its words name the seconds, and the ``key`` of the config that sets them.
    """
    loop = asyncio.get_running_loop()
    if (monitor := _monitors.get(loop)) is None:
        monitor = _monitors[loop] = _StallMonitor(loop)
    inner = asyncio.timeout(None)
    try:
        async with inner:
            monitor.enter()
            limit = Limit(seconds, inner, monitor)
            try:
                yield limit
            finally:
                limit.pause()
                monitor.leave()
    except TimeoutError as error:
        if not inner.expired():
            raise
        raise TimeoutError(f"not done within {key}{'=' * bool(key)}{seconds:g} seconds") from error


async def done_within(future: asyncio.Future[Any], seconds: float) -> bool:
    """Returns whether a future is done in so many seconds, stalls of the event loop not counted. Does not cancel it."""
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            await asyncio.wait([future])
    return future.done()


@dataclass
class ProgressTimeout:
    """Expires once nothing has made progress for so many seconds."""

    seconds: float
    seen: tuple[float, ...] | None = None
    until: float = 0.0

    def is_over(self, progress: tuple[float, ...], now: float) -> bool:
        """Returns whether it has expired at ``now`` (perf_counter); any change of ``progress`` restarts it."""
        if progress != self.seen:
            self.seen, self.until = progress, now + self.seconds
        return now > self.until
