"""Runs a batch in the engine's thread: takes calls between two steps, and answers the event loops.

All state of the engine is touched by this thread alone. Others hand it calls; a call runs when no token is being
sampled. Answers travel back in batches: one wake-up of an event loop for all that one turn has finished.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sidecar.protocol import (
    NOTHING,
    Completion,
    EngineError,
    PauseMode,
    PinnedVersionError,
    RequestError,
    UpdatePolicy,
)
from sidecar.stepping.batch import Batch
from sidecar.stepping.jobs import Job, Trace
from sidecar.stepping.waiting import WaitingLine


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A call to be run on the engine's thread.

    Attributes:
        function: called there; what it returns or raises is the answer, unless it returns `LATER`.
        loop: the event loop that waits.
        future: receives the result.
    """

    function: Callable[[Call], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


LATER = object()
"""Returned by a call that is answered later."""

_Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Stepper:
    """Runs a `Batch` in a thread of its own."""

    def __init__(self, batch: Batch, name: str, trace: Trace | None = None) -> None:
        """Starts the thread. `name` is named in its errors; ``trace`` is told of every ``swap`` of weights and every
        ``score``.
        """
        self.name = name
        self._trace = trace
        self.batch = batch
        self.lineage = -1
        self.paused = False
        self.busy_seconds = 0.0
        self.updates = 0
        self._draining: list[Call] = []
        self._updates: list[tuple[Call, Callable[[Call], None]]] = []
        self._scores: list[tuple[Call, np.ndarray, np.ndarray | None]] = []
        self._watches: list[tuple[Call, Job, int]] = []
        self._jobs: dict[str, Job] = {}
        # those whose slot an update took go first, and are served even while others are held
        self._interrupted, self._line = WaitingLine(), WaitingLine()
        self._arrivals = 0
        self._closed = False
        self._failure: EngineError | None = None
        self._inbox: queue.SimpleQueue[list[Call]] = queue.SimpleQueue()
        self._taken: collections.deque[Call] = collections.deque()
        self._gathered: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        self._inbox_lock = threading.Lock()
        self._outcomes: dict[asyncio.AbstractEventLoop, list[_Outcome]] = collections.defaultdict(list)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    @property
    def in_flight(self) -> int:
        """Requests not answered yet."""
        return len(self._jobs)

    async def call(self, function: Callable[[Call], Any]) -> Any:
        """Runs `function` on the thread and waits for its result.

        Raises:
            EngineError: the engine died or was closed, before or meanwhile.
        """
        loop = asyncio.get_running_loop()
        call = Call(function, loop, loop.create_future())
        self.submit_together(call)
        return await call.future

    def submit_together(self, call: Call) -> None:
        """Submits a call from its event loop, as one with those that other tasks make in the same turn of the loop: an
        idle engine would begin with the first, and the others wait until it has read and sampled for that alone.

        The future of the call raises like `call`.
        """
        gathered = self._gathered.setdefault(call.loop, [])
        gathered.append(call)
        if len(gathered) == 1:
            call.loop.call_soon(self._submit_gathered, call.loop)

    def submit(self, *calls: Call) -> None:
        """Submits calls without waiting, from any thread. Raises like `call`."""
        with self._inbox_lock:
            if self._failure is not None:
                raise _again(self._failure)
            self._inbox.put(list(calls))

    def _submit_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = self._gathered.pop(loop)
        try:
            self.submit(*calls)
        except EngineError as error:
            _settle([(call.future, None, _again(error)) for call in calls])

    # What follows runs on the thread.

    def add(self, call: Call, job: Job) -> object:
        """Adds a request; its future is answered when it ends."""
        if job.request.id in self._jobs:
            raise RequestError(f"request id {job.request.id!r} is in flight already; ids must be unique")
        job.order = self._arrivals
        self._arrivals += 1
        self._jobs[job.request.id] = job
        self._line.push([job])
        return LATER

    def abort(self, ids: list[str]) -> None:
        """Answers these requests with the tokens that they have."""
        for job in [self._jobs[i] for i in ids if i in self._jobs]:
            self.batch.remove(job)
            self._finish(job, "abort")

    def progress(self, call: Call, request_id: str, seen: int) -> object:
        """Answers with the tokens of a request behind the first `seen`, once there are any or it has ended."""
        job = self._jobs.get(request_id)
        if job is None:
            return NOTHING
        self._watches.append((call, job, seen))
        return LATER

    def forget(self, job: Job) -> None:
        """Drops a request whose caller no longer waits."""
        if not job.done and self._jobs.get(job.request.id) is job:
            self.abort([job.request.id])

    def update(self, call: Call, weights: Any, version: int, lineage: int, policy: UpdatePolicy) -> Any:
        """Updates the weights: at once or, where the running requests are to end first, after that."""
        if policy is UpdatePolicy.ABORT:
            self.abort([name for name, job in self._jobs.items() if job.tokens])
        if policy is UpdatePolicy.DRAIN and not self.paused and self._started():
            self._updates.append((call, lambda _: self.swap(weights, version, lineage, policy)))
            return LATER
        return self.swap(weights, version, lineage, policy)

    def swap(self, weights: Any, version: int, lineage: int, policy: UpdatePolicy) -> None:
        """Replaces the weights. Requests in flight lose their KV cache, and are prefilled again with the new ones; or,
        as the policy has it, they keep their KV, or their weights too.
        """
        start = time.time()
        older, lost = version < self.batch.version, lineage != self.lineage
        if older and policy is not UpdatePolicy.PIN:
            # Rolled back: what asked for newer weights is of a lost lineage, and must not go on with these.
            self._interrupted.push(self.batch.evict())
        keep_kv = policy is UpdatePolicy.KEEP_KV and not (older or lost)
        self._interrupted.push(self.batch.load(weights, version, lineage, keep_kv))
        self.lineage = lineage
        self.updates += 1
        self._interrupted.version_changed()
        self._line.version_changed()
        if self._trace is not None:
            self._trace("swap", start, time.time(), {"version": float(version)})
        while self._scores:
            call, token_ids, routes = self._scores.pop(0)
            self._answer(call, functools.partial(self.score, token_ids=token_ids, routes=routes))

    def score(self, call: Call, token_ids: np.ndarray, routes: np.ndarray | None) -> Any:
        """Computes log-probabilities of given tokens, once there are weights."""
        if self.batch.version < 0:
            self._scores.append((call, token_ids, routes))
            return LATER
        return self._score(token_ids, routes)

    def pause(self, call: Call, mode: PauseMode) -> Any:
        """Pauses sampling; see `PauseMode`. ``abort`` ends the requests that wait, too."""
        if mode is PauseMode.ABORT:
            self.abort(list(self._jobs))
        if mode is PauseMode.WAIT and self._started():
            self.paused = False
            self._draining.append(call)
            return LATER
        self.paused = True
        self._release_drains()
        return None

    def resume(self) -> None:
        """Resumes sampling."""
        self.paused = False
        self._release_drains()

    def close(self, call: Call) -> None:
        """Ends the thread."""
        self._closed = True
        self._send(call.loop, call.future, None, None)

    def _run(self) -> None:
        try:
            while not self._closed:
                self._take_calls(wait=not self._has_work())
                self._end_drains()
                self._deliver()  # who updated the weights does not wait for the step that reads all requests again
                if not self._closed and self._has_work():
                    start = time.perf_counter()
                    self._turn()
                    self.busy_seconds += time.perf_counter() - start
                    self._end_drains()
                self._answer_watches()
                self._deliver()
            self._end(EngineError(f"{self.name} was closed"))
        except BaseException as error:  # whatever it was, every waiting caller must be answered
            self._end(EngineError(f"{self.name} died: {type(error).__name__}: {error}".splitlines()[0]), error)

    def _has_work(self) -> bool:
        if self.paused or self.batch.version < 0:
            return False
        waiting = self._interrupted.ready() or (not self._held() and self._line.ready())
        return bool(self.batch.running or waiting)

    def _turn(self) -> None:
        version, free = self.batch.version, self.batch.slots - self.batch.running
        jobs = self._interrupted.take(free, version)
        if not self._held():
            jobs += self._line.take(free - len(jobs), version)
        self.batch.admit([job for job in jobs if self._can_serve(job)])
        if self.batch.running:
            for job, reason in self.batch.step():
                self._finish(job, reason)

    def _can_serve(self, job: Job) -> bool:
        """Returns whether the weights are held that a request is pinned to, if any; answers it where they are not."""
        if not job.request.pinned or self.batch.holds(job.request.min_version):
            return True
        self._end_job(job, None, PinnedVersionError.of(job.request, self.name))
        return False

    def _held(self) -> bool:
        """Returns whether the waiting requests stay queued until the running ones have ended."""
        return bool(self._draining or self._updates)

    def _end_drains(self) -> None:
        if not self._held() or self._started():
            return
        while self._updates:
            self._answer(*self._updates.pop(0))
        if self._draining:
            self.paused = True
            self._release_drains()

    def _started(self) -> bool:
        return bool(self.batch.running) or not self._interrupted.empty()

    def _release_drains(self) -> None:
        draining, self._draining = self._draining, []
        for call in draining:
            self._send(call.loop, call.future, None, None)

    def _answer_watches(self) -> None:
        watches, self._watches = self._watches, []
        for call, job, seen in watches:
            if job.done or len(job.tokens) > seen:
                self._send(call.loop, call.future, job.completion("abort", seen), None)
            else:
                self._watches.append((call, job, seen))

    def _score(self, token_ids: np.ndarray, routes: np.ndarray | None) -> np.ndarray:
        if self.paused:
            self._interrupted.push(self.batch.evict())  # so that nothing is sampled for them meanwhile
        start, began = time.perf_counter(), time.time()
        scores = self.batch.score(token_ids, routes)
        self.busy_seconds += time.perf_counter() - start
        if self._trace is not None:
            self._trace("score", began, time.time(), {"tokens": float(len(token_ids))})
        return scores

    def _finish(self, job: Job, reason: str) -> None:
        self._end_job(job, job.completion(reason), None)

    def _end_job(self, job: Job, completion: Completion | None, error: RequestError | None) -> None:
        self._send(job.loop, job.future, completion, error)
        job.done = True
        del self._jobs[job.request.id]

    def _take_calls(self, wait: bool) -> None:
        while True:
            try:
                self._taken.extend(self._inbox.get(block=wait))
            except queue.Empty:
                return
            wait = False
            while self._taken:
                call = self._taken.popleft()
                self._answer(call, call.function)

    def _answer(self, call: Call, function: Callable[[Call], Any]) -> None:
        try:
            value = function(call)
        except RequestError as error:
            self._send(call.loop, call.future, None, error)
        except BaseException:
            self._taken.append(call)  # the thread ends over it: `_end` answers it with those that were not begun
            raise
        else:
            if value is not LATER:
                self._send(call.loop, call.future, value, None)

    def _send(self, loop: asyncio.AbstractEventLoop, future: Any, value: Any, error: BaseException | None) -> None:
        self._outcomes[loop].append((future, value, error))

    def _deliver(self) -> None:
        for loop, outcomes in self._outcomes.items():
            try:
                loop.call_soon_threadsafe(_settle, outcomes)
            except RuntimeError:
                continue  # that event loop is closed: no caller waits on it
        self._outcomes.clear()

    def _end(self, failure: EngineError, cause: BaseException | None = None) -> None:
        failure.__cause__ = cause
        with self._inbox_lock:
            self._failure = failure
        waiting = [scored[0] for scored in self._scores]
        waiting += [call for call, _ in self._updates] + [call for call, *_ in self._watches]
        waiters: list[Call | Job] = [*self._draining, *waiting, *self._jobs.values(), *self._taken]
        while not self._inbox.empty():
            waiters += self._inbox.get()
        for waiter in waiters:
            self._send(waiter.loop, waiter.future, None, _again(failure))
        self._jobs.clear()
        self._deliver()
        with contextlib.suppress(Exception):  # the batch is of no more use, and callers get the first error
            self.batch.close()


def _again(error: EngineError) -> EngineError:
    """Returns an error for one more task: each adds to the traceback of its own."""
    again = EngineError(str(error))
    again.__cause__ = error.__cause__
    return again


def _settle(outcomes: list[_Outcome]) -> None:
    for future, value, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
