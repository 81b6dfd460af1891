"""An explorer in a thread: what its neighbours see while it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from rljax.launch.explorer_thread import ExplorerThread
from sidecar.hosting.local import LocalEngineLauncher
from tests.waiting import HANGS


class EndsWhenAsked:
    """An explorer that ends over the first question for its gauges, and leaves that question open."""

    waiting_for = "credit"

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.running = threading.Event()

    async def run(self) -> None:
        self.running.set()
        await self._asked.wait()

    async def gauges(self) -> dict[str, float]:
        self._asked.set()
        await asyncio.Event().wait()
        return {}

    def stop(self) -> None:
        self._asked.set()


class NoWorkflows:
    async def close(self) -> None: ...


def test_gauges_asked_for_while_the_explorer_ends_are_the_last_known_ones() -> None:
    explorer: Any = EndsWhenAsked()
    workflows: Any = NoWorkflows()
    db: Any = None
    thread = ExplorerThread(db, "e", explorer, workflows, LocalEngineLauncher(), needed=True)
    thread.start()
    assert explorer.running.wait(HANGS)
    assert thread.gauges() == {}
    thread.close()
    assert thread.error is None
