"""Calls the ledger from coroutines: no transaction, retry or backoff holds their event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from rljax.ledger.database import Database
from rljax.ledger.notify import Notifier
from rljax.ledger.run_spec import RunSpec

log = logging.getLogger(__name__)

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


TOGETHER = 16
"""Calls that are made as one: their transaction holds the ledger's lock, and memory, for as long as one small batch."""


class AsyncDatabase:
    """Runs the ledger's calls on one thread, in the order in which they were made, but for `call_together`.

    Attributes:
        spec, clock, notifier: those of the `Database`; they never wait.
    """

    def __init__(
        self,
        db: Database,
        executor: Executor | None = None,
        noted: Callable[[float, float, float], None] | None = None,
    ) -> None:
        """Takes ``executor``, which runs the calls one at a time: a thread of its own by default; on virtual time
        another. ``noted`` is told on it when each call began and ended, by the clock, and its CPU seconds.

        The thread starts with the first call. Closing ``db`` remains the caller's.
        """
        self.spec: RunSpec = db.spec
        self.clock: Callable[[], float] = db.clock
        self.notifier: Notifier = db.notifier
        self._db = db
        self._noted = noted
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._lock = threading.RLock()  # an executor may call at once
        self._asked: dict[Callable[..., Any], list[tuple[Any, Future[Any]]]] = {}

    async def call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function of the ledger, and returns its result.

        A caller that is cancelled before its turn has made no call. Once the function runs it runs to its end, and only
        then is the cancellation raised: no caller goes on while its transaction is still open, and what it calls
        next finds it made whole or not at all.

        Raises:
            Exception: what the function raises.
        """
        return await self._result(
            self._executor.submit(self._run, functools.partial(function, self._db, *args, **kwargs))
        )

    async def call_together(
        self, function: Callable[[Database, Sequence[A]], Sequence[T | Exception]], argument: A
    ) -> T:
        """Calls a function of the ledger once for those that wait for their turn with the same one, `TOGETHER` at most,
        and returns this one's result. A caller that is cancelled is as one of `call`; who comes later overtakes the
        other calls that were made since the first.

        Args:
            function: returns a result for each argument, in their order.
            argument: this caller's.

        Raises:
            RuntimeError: the thread has ended, as with `call`.
            Exception: what the function raises, or returns as this caller's result.
        """
        made: Future[T] = Future()
        with self._lock:
            if function in self._asked:
                self._asked[function].append((argument, made))
            else:
                self._asked[function] = [(argument, made)]
                try:
                    called = self._executor.submit(self._run, functools.partial(self._answer_all, function))
                except BaseException:
                    del self._asked[function]  # nobody is to wait for a thread that has ended
                    raise
                called.add_done_callback(_log_failure)
        return await self._result(made)

    def _answer_all(self, function: Callable[[Database, Sequence[A]], Sequence[T | Exception]]) -> None:
        with self._lock:
            waiting = self._asked.pop(function)
        for first in range(0, len(waiting), TOGETHER):
            self._answer(function, waiting[first : first + TOGETHER])

    def _answer(
        self,
        function: Callable[[Database, Sequence[A]], Sequence[T | Exception]],
        waiting: Sequence[tuple[A, Future[T]]],
    ) -> None:
        asked = [(argument, made) for argument, made in waiting if made.set_running_or_notify_cancel()]
        results: Sequence[T | BaseException]
        try:
            results = function(self._db, [argument for argument, _ in asked]) if asked else []
            if len(results) != len(asked):
                raise RuntimeError(f"{function.__name__}: {len(results)} results of {len(asked)} arguments")
        except BaseException as error:
            results = [error] * len(asked)
        for (_, made), result in zip(asked, results, strict=True):
            if isinstance(result, BaseException):
                made.set_exception(result)
            else:
                made.set_result(result)

    async def _result(self, made: Future[T]) -> T:
        try:
            if made.done():
                await asyncio.sleep(0)
                return made.result()
            return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            made.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
            while not made.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await ended.wait()
            _log_failure(made)
            raise

    def post(self, function: Callable[Concatenate[Database, P], object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queues a call of the ledger without waiting: for notes. One that fails is logged. Any thread."""
        called = functools.partial(function, self._db, *args, **kwargs)
        self._executor.submit(self._run, called).add_done_callback(_log_failure)

    async def close(self) -> None:
        """Finishes the calls that are pending and ends the thread; no call can be made any more."""
        try:
            await self.call(lambda _: None)
        finally:
            self._executor.shutdown(wait=False)

    def _run(self, call: Callable[[], T]) -> T:
        begin, used = self.clock(), time.thread_time()
        try:
            return call()
        finally:
            if self._noted is not None:
                self._noted(begin, self.clock(), time.thread_time() - used)


def _log_failure(made: Future[Any]) -> None:
    if not made.cancelled() and (error := made.exception()) is not None:
        log.warning("a call of the ledger that nobody waited for: %s: %s", type(error).__name__, error)
