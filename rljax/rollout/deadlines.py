"""Time limits that are paused while generation is held, so that a validation costs no trajectory its time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from rljax.timeouts import Limit, timeout


class PausableDeadlines:
    """Holds all the time limits of one explorer, and pauses and resumes them together."""

    def __init__(self) -> None:
        self._running: dict[Limit, None] = {}
        self._held = False

    @contextlib.asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError in the ``async with`` block once it has run for ``seconds``, held time not counted."""
        async with timeout(seconds, "rollout.trajectory_timeout") as limit:
            if self._held:
                limit.pause()
            self._running[limit] = None
            try:
                yield
            finally:
                del self._running[limit]

    def hold(self) -> None:
        """Pauses all time limits."""
        self._held = True
        for limit in self._running:
            limit.pause()

    def release(self) -> None:
        """Resumes all time limits with what each had left."""
        if not self._held:
            return
        self._held = False
        for limit in self._running:
            limit.resume()
