"""Time limits that stand still while generation is held, so that a validation costs no trajectory its time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from rljax.timeouts import Limit, timeout


class PausableDeadlines:
    """All the time limits of one explorer."""

    def __init__(self) -> None:
        self._running: dict[Limit, None] = {}
        self._held = False

    @contextlib.asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError in the body once it has run for ``seconds``, held time not counted."""
        async with timeout(seconds) as limit:
            if self._held:
                limit.pause()
            self._running[limit] = None
            try:
                yield
            finally:
                del self._running[limit]

    def hold(self) -> None:
        """Stops all clocks."""
        self._held = True
        for limit in self._running:
            limit.pause()

    def release(self) -> None:
        """Starts them again with what each had left."""
        self._held = False
        for limit in self._running:
            limit.resume()
