"""An event loop whose clock jumps to the next thing that is due: hours of waiting pass in no time, in an order that
depends on nothing but the delays.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for what comes from elsewhere (a thread, a socket) when nothing more is due now, and then jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0.0:
            return []
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if found:
            return found
        if timeout is None:
            raise RuntimeError("deadlock: everything waits and nothing is due")
        self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, in seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._home = threading.get_ident()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Returns the virtual seconds that have passed."""
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        """Lets time pass while whoever calls this holds the loop up."""
        self._jumping.now += seconds

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedules a call; from the loop's own thread nothing has to be woken."""
        if threading.get_ident() == self._home:
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine on virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class InlineExecutor(Executor):
    """Runs each call at once, in the thread of the caller: a thread of its own would take real time."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Implements `Executor.submit`."""
        made: Future[T] = Future()
        try:
            made.set_result(fn(*args, **kwargs))
        except BaseException as error:
            made.set_exception(error)
        return made
