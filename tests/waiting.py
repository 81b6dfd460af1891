"""How long tests wait for what another thread or process does: until it is done, however busy the machine is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

HANGS = 300.0
"""Seconds after which what is waited for will not come any more. Half of what pytest gives a whole test, and a hundred
times what any of it takes on a machine with nothing else to do.
"""


def until(condition: Callable[[], object]) -> None:
    """Returns as soon as it holds.

    Raises:
        AssertionError: it never does.
    """
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, f"waited {HANGS:g} s in vain"
        time.sleep(0.01)


class Gate:
    """Stops an engine, as its trace, after so many of its calls of a kind, until it is opened."""

    def __init__(self, left: int, kind: str = "decode") -> None:
        self.left, self.kind = left, kind
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, what: str, begin: float, end: float, numbers: dict[str, float]) -> None:
        if what == self.kind:
            self.left -= 1
            if self.left == 0:
                self.reached.set()
                assert self.opened.wait(HANGS)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, HANGS)
