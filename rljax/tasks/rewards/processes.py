"""Runs rewards that may hang in worker processes, which are killed and replaced when they do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljax.tasks.rewards import worker
from rljax.tasks.rewards.reward import Response, Reward, RewardError, RewardTimeout, Tasks
from rljax.tasks.task import RewardTerm
from rljax.timeouts import done_within
from sidecar.errors import describe
from sidecar.workers.lifeline import in_lasting_thread

if TYPE_CHECKING:
    from pebble import ProcessPool

_START_SECONDS = 60.0  # for an interpreter and its imports on a busy machine
_KILL_SECONDS = 10.0  # for the end of a worker and the start of the next
_ATTEMPTS = 3
_SPAWN_LOCK = threading.Lock()


class _Process(SpawnProcess):
    """Spawned process that does not import the parent's ``__main__``, started so that it can `hold` on to its parent.

    A script without ``if __name__ == "__main__"`` would otherwise start its own training again in every worker.
    """

    @staticmethod
    def _Popen(process: Any) -> Any:
        def start() -> Any:
            with _main_hidden():
                return SpawnProcess._Popen(process)

        return in_lasting_thread(start)


class _Context(SpawnContext):
    Process = _Process


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    with _SPAWN_LOCK:
        original = spawn.get_preparation_data
        spawn.get_preparation_data = lambda name: {
            key: value for key, value in original(name).items() if not key.startswith("init_main")
        }
        try:
            yield
        finally:
            spawn.get_preparation_data = original


class WorkerProcesses:
    """Pool of workers (pebble, spawned), started at the first call or by `warm`.

    Safe to use from any thread and from several event loops.

    Args:
        names: rewards that workers import before their first call.
        limit: seconds for one call, counted from when a worker takes it up.
        workers: processes.
        log: file that takes what the rewards print; None to print where this process does.
    """

    def __init__(self, names: Sequence[str], *, limit: float, workers: int, log: Path | None = None) -> None:
        self._names = tuple(names)
        self._limit = limit
        self._workers = workers
        self._log = "" if log is None else str(log.absolute())
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._waiting: dict[Future[Any], ProcessPool] = {}
        self._stopping: list[threading.Thread] = []
        self._closed = False

    @property
    def pending(self) -> int:
        """Calls that wait or run."""
        return len(self._waiting)

    def warm(self) -> None:
        """Starts the workers in the background."""

        def start() -> None:
            with contextlib.suppress(Exception):  # the first call meets it again, and reports it
                self._started()

        threading.Thread(target=start, name="reward-warm-up", daemon=True).start()

    async def judge(self, term: RewardTerm, tasks: Tasks, response: Response) -> tuple[Reward, ...]:
        """Calls a reward in a worker; returns one of each response. Cancelling this kills the worker.

        Raises:
            RewardTimeout: it outlived its limit.
            RewardError: it raised, its worker died, no worker took it up in time, or the task cannot be sent to one.
        """
        for _ in range(_ATTEMPTS):
            pool = self._pool
            if pool is None:
                pool = await asyncio.to_thread(self._started)
            future = self._scheduled(pool, term, tasks, response)
            if future is None:
                continue
            try:
                outcome = await self._outcome(pool, future)
            finally:
                self._waiting.pop(future, None)
                future.cancel()
            if isinstance(outcome, worker.Failure):
                raise RewardError(outcome.reason)
            if outcome is not None:
                return outcome
        raise RewardError(f"the worker processes broke down {_ATTEMPTS} times")

    def close(self) -> None:
        """Ends the workers, and fails waiting calls with a `RewardError`. Takes up to some seconds; may be repeated."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            self._retire(pool)
        for thread in list(self._stopping):
            thread.join(_KILL_SECONDS)

    def _started(self) -> ProcessPool:
        with self._lock:
            if self._closed:
                raise RewardError("the rewards were closed")
            if self._pool is None:
                import pebble

                self._pool = pebble.ProcessPool(
                    self._workers, initializer=worker.begin, initargs=(self._names, self._log), context=_Context()
                )
                self._pool.schedule(worker.ready)
            return self._pool

    def _scheduled(self, pool: ProcessPool, term: RewardTerm, tasks: Tasks, response: Response) -> Future[Any] | None:
        try:
            future: Future[Any] = pool.schedule(worker.judge, (term, tasks, response), timeout=self._limit)
        except RuntimeError:
            self._retire(pool)
            return None
        self._waiting[future] = pool
        return future

    async def _outcome(self, pool: ProcessPool, future: Future[Any]) -> tuple[Reward, ...] | worker.Failure | None:
        """Returns the worker's result; None if the pool broke through no fault of this call."""
        deadline = _START_SECONDS + (self._limit + _KILL_SECONDS) * (1 + len(self._waiting) // self._workers)
        waiter = asyncio.wrap_future(future)
        if not await done_within(waiter, deadline):
            self._retire(pool)
            raise RewardError(f"no worker process took it up within {deadline:.0f} s; they were replaced")
        if waiter.cancelled():
            if self._closed:
                raise RewardError("the rewards were closed")
            return None
        try:
            return waiter.result()
        except TimeoutError:
            raise RewardTimeout(f"not done after {self._limit:g} s; its worker process was killed") from None
        except BrokenProcessPool:
            self._retire(pool)
            return None
        except Exception as error:
            raise RewardError(f"its worker process failed: {describe(error)}") from error

    def _retire(self, pool: ProcessPool) -> None:
        """Abandons a broken pool: the calls that wait for it go to the next one."""
        with self._lock:
            if self._pool is not pool:
                return
            self._pool = None
            # Killing a process may take seconds, and this may be the thread of an event loop.
            thread = threading.Thread(target=_stop, args=(pool,), name="reward-stop", daemon=True)
            self._stopping = [t for t in self._stopping if t.is_alive()] + [thread]
            thread.start()
        for future in [f for f, owner in list(self._waiting.items()) if owner is pool]:
            future.cancel()


def _stop(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()
