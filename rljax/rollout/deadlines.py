"""Time limits that stand still while generation is held, so that a validation costs no trajectory its time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class PausableDeadlines:
    """All the time limits of one explorer."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Timeout, None] = {}
        self._left: dict[asyncio.Timeout, float] | None = None

    @contextlib.asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError in the body once it has run for ``seconds``, held time not counted."""
        async with asyncio.timeout(None if self._left is not None else seconds) as timeout:
            self._running[timeout] = None
            if self._left is not None:
                self._left[timeout] = seconds
            try:
                yield
            finally:
                self._running.pop(timeout, None)
                if self._left is not None:
                    self._left.pop(timeout, None)

    def hold(self) -> None:
        """Stops all clocks."""
        if self._left is not None:
            return
        now = asyncio.get_running_loop().time()
        self._left = {}
        for timeout in self._running:
            when = timeout.when()
            if when is not None and not timeout.expired():
                self._left[timeout] = max(0.0, when - now)
                timeout.reschedule(None)

    def release(self) -> None:
        """Starts them again with what each had left."""
        if self._left is None:
            return
        now = asyncio.get_running_loop().time()
        left, self._left = self._left, None
        for timeout, seconds in left.items():
            timeout.reschedule(now + seconds)
