"""Runs rewards that are async functions, many at once, on an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import Any, Protocol

from rljax.tasks.rewards.reward import (
    Response,
    Reward,
    RewardError,
    RewardFunction,
    RewardTimeout,
    Tasks,
    rewards_of,
)
from rljax.timeouts import Limit, done_within, timeout
from sidecar.errors import describe

_MARGIN = 5.0  # seconds that its event loop may answer too late
_CLOSE = 5.0
_left: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []  # by a trial, to the rewards after it
_left_lock = threading.Lock()


class Asked(Protocol):
    """A model of our own that rewards ask: so many of them at once."""

    at_once: int


class _Queue:
    """Calls of which ``at_once`` run; the others wait for their turn."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.turns = asyncio.Semaphore(at_once)
        self.calls: set[Future[Any]] = set()


class AwaitedRewards:
    """Event loop on a thread, started at the first call. One that blocks holds up the others here, and nothing else.

    Safe to use from any thread and from several event loops.

    Args:
        limit: seconds for one call, counted from when it begins.
        at_once: calls under way; others wait for their turn. Those that ask a judge or reward model of our own have a
            queue of their own, from which as many are under way as it answers: none spends its time waiting for it.
    """

    def __init__(self, *, limit: float, at_once: int) -> None:
        self._limit = limit
        self._queues: dict[Asked | None, _Queue] = {None: _Queue(at_once)}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def pending(self) -> int:
        """Calls that wait or run."""
        return sum(len(queue.calls) for queue in list(self._queues.values()))

    async def judge(
        self, function: RewardFunction, tasks: Tasks, response: Response, asked: Asked | None = None
    ) -> tuple[Reward, ...]:
        """Awaits a reward; returns one of each response. ``asked`` is the model of our own that it asks.

        Raises:
            RewardTimeout: it outlived its limit, or another blocks the event loop.
            RewardError: it raised.
        """
        queue = self._queue(asked)
        future = asyncio.run_coroutine_threadsafe(self._judged(queue, function, tasks, response), self._started())
        deadline = (self._limit + _MARGIN) * (1 + len(queue.calls) // queue.at_once)
        queue.calls.add(future)
        try:
            waiter = asyncio.wrap_future(future)
            if not await done_within(waiter, deadline):
                raise RewardTimeout(f"not done after {deadline:g} s: an async reward blocks the others; it must await")
            if waiter.cancelled():
                closed = "the rewards were closed"
                raise RewardError(closed if self._closed else "CancelledError: it, or what it awaits, was cancelled")
            return waiter.result()
        finally:
            queue.calls.discard(future)
            future.cancel()

    async def _judged(
        self, queue: _Queue, function: RewardFunction, tasks: Tasks, response: Response
    ) -> tuple[Reward, ...]:
        async with queue.turns:
            limit: Limit | None = None
            try:
                async with timeout(self._limit) as limit:
                    return rewards_of(function, await function(tasks, response), response)
            except RewardError:
                raise
            except (Exception, SystemExit) as error:  # a SystemExit would end the event loop of all
                if limit is not None and limit.expired():
                    raise RewardTimeout(f"not done after {self._limit:g} s") from None
                raise RewardError(describe(error)) from error

    def close(self, *, leave: bool = False) -> None:
        """Cancels what runs and ends the thread; may be repeated.

        With ``leave`` nothing runs any more, and the next rewards of this process go on with the event loop: a client
        that a reward keeps belongs to the loop that it was first used on. One that is blocked is ended.
        """
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        if leave and _answers(loop):
            with _left_lock:
                _left.append((loop, thread))
            return
        with contextlib.suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE)

    def _queue(self, asked: Asked | None) -> _Queue:
        with self._lock:
            if asked is not None and asked not in self._queues:
                self._queues[asked] = _Queue(asked.at_once)
            return self._queues[asked]

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RewardError("the rewards were closed")
            if self._loop is None:
                with _left_lock:
                    left = _left.pop() if _left else None
                self._loop, self._thread = left or _begun()
            return self._loop


def _begun() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop,), name="rewards", daemon=True)
    thread.start()
    return loop, thread


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
        # leaving cancels what is under way and awaits its end


def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    with contextlib.suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(_CLOSE)
        return True
    return False
