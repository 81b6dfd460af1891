"""Runs rewards that exist in this process alone, such as a function of a notebook cell, on threads."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from dataclasses import dataclass
from typing import Any

from rljax.tasks.rewards.reward import (
    Response,
    Reward,
    RewardError,
    RewardFunction,
    RewardTimeout,
    Tasks,
    reason_of,
    rewards_of,
)
from rljax.tasks.rewards.worker import Failure
from rljax.timeouts import done_within

_THREADS = 8
_MAX_HUNG = 16
_CLOSED = "the rewards were closed"


@dataclass(eq=False)
class _Job:
    function: RewardFunction
    tasks: Tasks
    response: Response
    started: asyncio.Future[None]
    outcome: asyncio.Future[tuple[Reward, ...] | Failure]
    running: bool = False
    abandoned: bool = False

    def post(self, future: asyncio.Future[Any], value: object) -> None:
        """Sets the result of a future from another thread, if anyone still waits for it."""

        def fulfil() -> None:
            if not future.done():
                future.set_result(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            future.get_loop().call_soon_threadsafe(fulfil)


class DeadlineThreads:
    """Pool of up to `_THREADS` daemon threads. One that outlives the limit is left behind and replaced.

    Args:
        limit: seconds for one call, counted from when a thread takes it up.
    """

    def __init__(self, *, limit: float) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._alive = 0
        self._hung = 0
        self._waited_for: set[_Job] = set()
        self._closed = False

    @property
    def pending(self) -> int:
        """Calls that wait for a thread."""
        return self._jobs.qsize()

    async def judge(self, function: RewardFunction, tasks: Tasks, response: Response) -> tuple[Reward, ...]:
        """Calls a reward on a thread; returns one of each response.

        Raises:
            RewardTimeout: it outlived its limit.
            RewardError: it raised, or too many threads hang already, or this was closed.
        """
        if self._hung >= _MAX_HUNG:
            raise RewardError(f"{_MAX_HUNG} threads already hang in rewards; mend the function and start again")
        loop = asyncio.get_running_loop()
        job = _Job(function, tasks, response, loop.create_future(), loop.create_future())
        deadline = (self._limit + 1) * (2 + self._jobs.qsize() // _THREADS)
        with self._lock:
            if self._closed:
                raise RewardError(_CLOSED)
            self._waited_for.add(job)
            self._jobs.put(job)
        self._start_thread_if_needed()
        try:
            if not await done_within(job.started, deadline):
                raise RewardTimeout(f"no thread took it up within {deadline:.1f} s")
            done = await done_within(job.outcome, self._limit)
        finally:
            with self._lock:
                self._waited_for.discard(job)
            if not job.outcome.done():
                self._abandon(job)
        if not done:
            raise RewardTimeout(f"not done after {self._limit:g} s; its thread cannot be killed and is left behind")
        outcome = job.outcome.result()
        if isinstance(outcome, Failure):
            raise RewardError(outcome.reason)
        return outcome

    def close(self) -> None:
        """Fails what waits or runs with a `RewardError`, and lets idle threads end. A thread inside a reward ends with
        it, or with the process. May be repeated.
        """
        with self._lock:
            self._closed = True
            for job in self._waited_for:
                job.abandoned = job.abandoned or not job.running
                job.post(job.started, None)
                job.post(job.outcome, Failure(_CLOSED))
            for _ in range(self._alive):
                self._jobs.put(None)

    def _start_thread_if_needed(self) -> None:
        """Starts a thread if work waits and the threads that are not hung are fewer than allowed."""
        with self._lock:
            if self._alive < _THREADS and not self._jobs.empty():
                self._alive += 1
                threading.Thread(target=self._work, name="reward", daemon=True).start()

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.abandoned = True
            if not job.running:
                return
            self._alive -= 1
            self._hung += 1
        self._start_thread_if_needed()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                if job.abandoned:
                    continue
                job.running = True
            job.post(job.started, None)
            try:
                returned = job.function(job.tasks, job.response)
                outcome: tuple[Reward, ...] | Failure = rewards_of(job.function, returned, job.response)
            except BaseException as error:
                outcome = Failure(reason_of(error))
            with self._lock:
                if job.abandoned:
                    self._hung -= 1
                    return
                job.running = False
            job.post(job.outcome, outcome)
        with self._lock:
            self._alive -= 1
