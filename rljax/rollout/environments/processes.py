"""Environments in worker processes, several to each; one that hangs or dies costs no other environment its time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rljax.rollout.environments.session import (
    EnvironmentDied,
    EnvironmentFailure,
    EnvironmentHung,
    EnvironmentLost,
    EnvironmentSpec,
    Observation,
)
from rljax.timeouts import timeout
from sidecar.workers.child_process import ChildEnded, ChildProcess

OPEN_SECONDS = 120.0
"""Seconds that making an environment may take beyond the limit of its answers."""
PING_SECONDS = 5.0
"""Seconds that a worker has to answer a ping. It computes nothing for that: one that is silent is blocked."""


class WorkerProcess(Protocol):
    """Handle of a process that serves `worker.Environments`: a child of this one, or an actor of a Ray cluster."""

    @property
    def alive(self) -> bool:
        """False once it is known to have ended."""
        ...

    async def call(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method there. Raises ChildEnded, or what the method raised."""
        ...

    def kill(self, why: str) -> bool:
        """Kills it at once; false where it had ended."""
        ...

    async def close(self) -> None:
        """Kills it and waits for its end."""
        ...

    async def ended(self) -> str:
        """Returns which it was, and how it ended."""
        ...


StartWorker = Callable[[Callable[[], None]], WorkerProcess]
"""Starts a process; is handed what to call when that has ended by itself."""


def child_process(log: Path | None) -> StartWorker:
    """Returns what starts workers as children of this process; ``log`` takes what they print."""
    module, environment = "rljax.rollout.environments.worker", {"OMP_NUM_THREADS": "1"}
    return lambda on_end: ChildProcess(module, log=log, environment=environment, on_end=on_end)


class WorkerSession:
    """An environment in a worker process. Implements `session.Session`.

    Attributes:
        worker: the process that it runs in.
        episodes: number of episodes that it has finished.
    """

    def __init__(self, worker: Worker, number: int, name: str) -> None:
        self.worker = worker
        self.episodes = 0
        self._number = number
        self._name = name

    async def reset(self, seed: int) -> Observation:
        """Implements `Session.reset`."""
        return await self._ask("reset", seed)

    async def step(self, action: str) -> Observation:
        """Implements `Session.step`."""
        return await self._ask("step", action)

    async def open(self, spec: EnvironmentSpec) -> None:
        """Makes the environment. That may take as long as a process and its imports take on a busy machine."""
        await self._ask("open", spec, self.worker.timeout + OPEN_SECONDS)

    async def close(self) -> None:
        """Ends the environment. Its place is free at once."""
        self.worker.leave(self._number)
        with contextlib.suppress(EnvironmentFailure):
            await self._ask("close", None)

    async def _ask(self, method: str, argument: Any, limit: float | None = None) -> Any:
        seconds = limit or self.worker.timeout
        try:
            async with timeout(seconds):
                return await self.worker.call(self._number, method, argument)
        except TimeoutError:
            if await self.worker.responds():
                self.worker.retire()
            elif not self.worker.end():
                raise EnvironmentLost(f"{self._name}: another environment held its process up") from None
            raise EnvironmentHung(
                f"{self._name}: no answer to {method} within {seconds:g} s; if it needs longer, raise "
                "rollout.env_timeout"
            ) from None


class Worker:
    """A worker process that runs several environments.

    Attributes:
        handle: of the process.
        timeout: seconds for one answer.
        retired: whether something in it hangs; it gets no further environment and is killed when its others end.
    """

    def __init__(self, timeout: float, start: StartWorker, on_retire: Callable[[Worker], None]) -> None:
        """Starts the process. ``on_retire`` is called when it gets no further
        environment, to end the idle ones in it.
        """
        self.timeout = timeout
        self.retired = False
        self._on_retire = on_retire
        self.handle = start(self.retire)
        self._numbers = itertools.count()
        self._sessions: set[int] = set()

    @property
    def occupied(self) -> int:
        """Number of environments in the process."""
        return len(self._sessions)

    def session(self, name: str) -> WorkerSession:
        """Reserves a place for an environment, to be opened, and returns its session."""
        number = next(self._numbers)
        self._sessions.add(number)
        return WorkerSession(self, number, name)

    def leave(self, number: int) -> None:
        """Frees the place of an environment that has ended."""
        self._sessions.discard(number)
        self._end_if_unused()

    def retire(self) -> None:
        """Takes no further environments, and ends the process once it has none."""
        if not self.retired:
            self.retired = True
            self._on_retire(self)
        self._end_if_unused()

    async def responds(self) -> bool:
        """Returns whether the process answers a ping: nothing in it holds the interpreter's lock."""
        try:
            async with timeout(PING_SECONDS):
                await self.call(-1, "ping", None)
        except (TimeoutError, EnvironmentFailure):
            return False
        return True

    def end(self) -> bool:
        """Kills the process, and with it all of its environments; returns False where it was killed or dead before."""
        first = self.handle.kill("it was killed")
        self.retire()
        return first

    async def call(self, number: int, method: str, argument: Any) -> Any:
        """Calls a method of an environment and returns its answer.

        Raises:
            EnvironmentFailure: what it failed with, or that the process is gone.
        """
        try:
            return await self.handle.call(method, number, argument)
        except ChildEnded as ended:
            how = await self.handle.ended()
            # An environment that computed alone is to blame; among several the culprit is unknown.
            kind = EnvironmentDied if ended.alone else EnvironmentLost
            raise kind(f"environment worker {how}") from None

    async def close(self) -> None:
        """Ends the process, whatever its environments do."""
        await self.handle.close()

    def _end_if_unused(self) -> None:
        if self.retired and not self._sessions:
            self.handle.kill("nobody is left in it")
