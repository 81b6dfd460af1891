"""Environment hosts: lend environments to episodes, from the idle ones or made anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from rljax.rollout.environments.processes import StartWorker, Worker, WorkerSession, child_process
from rljax.rollout.environments.session import EnvironmentSpec, LocalEnvironment, Observation, Session


class EnvironmentHost(Protocol):
    """Lends environments to episodes."""

    def session(self, spec: EnvironmentSpec) -> contextlib.AbstractAsyncContextManager[Session]:
        """Lends an environment for one episode. If the ``async with`` block ends without an error
        it is kept for the next one.

        Raises:
            EnvironmentFailure: it cannot be made.
        """
        ...

    async def close(self) -> None:
        """Ends all environments."""
        ...


class _LoopSession:
    def __init__(self, spec: EnvironmentSpec) -> None:
        self._environment = LocalEnvironment(spec)
        self.episodes = 0

    async def reset(self, seed: int) -> Observation:
        return self._environment.reset(seed)

    async def step(self, action: str) -> Observation:
        return self._environment.step(action)

    def close(self) -> None:
        self._environment.close()


class LoopHost:
    """Runs environments on the event loop itself: for those that answer within milliseconds and never hang."""

    def __init__(self, *, max_episodes: int | None = None) -> None:
        """Creates the host; an environment is replaced by a fresh one after ``max_episodes``."""
        self._max_episodes = max_episodes
        self._idle: dict[EnvironmentSpec, list[_LoopSession]] = {}

    @contextlib.asynccontextmanager
    async def session(self, spec: EnvironmentSpec) -> AsyncIterator[Session]:
        """Implements `EnvironmentHost.session`."""
        idle = self._idle.setdefault(spec, [])
        session = idle.pop() if idle else _LoopSession(spec)
        try:
            yield session
        except BaseException:
            session.close()
            raise
        session.episodes += 1
        if session.episodes == self._max_episodes:
            session.close()
        else:
            idle.append(session)

    async def close(self) -> None:
        """Implements `EnvironmentHost.close`."""
        for session in (session for idle in self._idle.values() for session in idle):
            session.close()
        self._idle.clear()


class ProcessHost:
    """Runs environments in worker processes."""

    def __init__(
        self,
        per_worker: int,
        timeout: float,
        *,
        max_episodes: int | None = None,
        log: Path | None = None,
        start: StartWorker | None = None,
    ) -> None:
        """Creates the host: at most ``per_worker`` environments to a process; ``timeout`` seconds for an answer; a
        fresh environment after ``max_episodes``. ``start`` starts a process; None: a child, and ``log`` takes what it
        prints.
        """
        self._max_episodes = max_episodes
        self._per_worker = per_worker
        self._timeout = timeout
        self._start = start or child_process(log)
        self._workers: list[Worker] = []
        self._idle: dict[EnvironmentSpec, list[WorkerSession]] = {}
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> int:
        """Number of worker processes that are alive."""
        return sum(worker.handle.alive for worker in self._workers)

    @contextlib.asynccontextmanager
    async def session(self, spec: EnvironmentSpec) -> AsyncIterator[Session]:
        """Implements `EnvironmentHost.session`."""
        session = self._take_idle(spec)
        try:
            if session is None:
                session = self._place(spec)
                await session.open(spec)
            yield session
        except BaseException:
            if session is not None:
                self._end(session)  # nobody waits: it may be the one that hangs
            raise
        session.episodes += 1
        if session.episodes == self._max_episodes or session.worker.retired:
            self._end(session)
        else:
            self._idle.setdefault(spec, []).append(session)

    async def close(self) -> None:
        """Implements `EnvironmentHost.close`."""
        for ending in self._endings:
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        self._idle.clear()
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._workers.clear()

    def _take_idle(self, spec: EnvironmentSpec) -> WorkerSession | None:
        idle = self._idle.get(spec)
        return idle.pop() if idle else None

    def _place(self, spec: EnvironmentSpec) -> WorkerSession:
        self._workers = [worker for worker in self._workers if worker.handle.alive]
        free = self._free()
        if not free:
            self._make_room()
            free = self._free()
        if not free:
            free = [Worker(self._timeout, self._start, self._end_idle_in)]
            self._workers += free
        return min(free, key=lambda worker: worker.occupied).session(spec.id)

    def _free(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.retired and worker.occupied < self._per_worker]

    def _make_room(self) -> None:
        """Ends an idle environment of another kind, if there is one: there are never more processes than needed."""
        for idle in self._idle.values():
            if idle:
                self._end(idle.pop())
                return

    def _end_idle_in(self, worker: Worker) -> None:
        """Ends the idle environments of a worker that retires: it can be killed once no episode runs in it."""
        for spec, idle in self._idle.items():
            self._idle[spec] = [session for session in idle if session.worker is not worker]
            for session in idle:
                if session.worker is worker:
                    self._end(session)

    def _end(self, session: WorkerSession) -> None:
        ending = asyncio.ensure_future(session.close())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
