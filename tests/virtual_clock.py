"""An event loop whose clock jumps to the next thing that is due, and engines with modelled latencies to go with it.

Hours of waiting pass in no time, in an order that depends on nothing but the delays.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np

from sidecar.protocol import Completion, EngineStatus, GenerateRequest, PauseMode, WeightUpdate

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: everything waits and nothing is due")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, in seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        """Lets time pass while whoever calls this holds the loop up."""
        self._jumping.now += seconds


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
        made: Future[T] = Future()
        try:
            made.set_result(fn(*args, **kwargs))
        except BaseException as error:
            made.set_exception(error)
        return made


class ModelledEngine:
    """An engine that answers after a modelled time, with ``tokens`` tokens that carry the version served when each
    would have been sampled. Aborts, holds and ``min_version`` behave as the protocol says.
    """

    def __init__(
        self,
        latency: Callable[[GenerateRequest], float],
        load_seconds: float = 0.0,
        tokens: int = 4,
        slots: int = 10**6,
    ) -> None:
        self._latency = latency
        self._load_seconds = load_seconds
        self._tokens = tokens
        self._slots = slots
        self._version, self._lineage = -1, -1
        self._changed = asyncio.Condition()
        self._running: dict[str, asyncio.Event] = {}
        self._paused = False
        self.served: list[GenerateRequest] = []
        self.loads: list[WeightUpdate] = []
        self.paused_while_generating = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.served.append(request)
        aborted = self._running[request.id] = asyncio.Event()
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._version >= request.min_version or aborted.is_set())
            count = min(self._tokens, request.sampling.max_new_tokens)
            step, versions = self._latency(request) / count, []
            for _ in range(count):
                try:
                    async with asyncio.timeout(step):
                        await aborted.wait()
                    break
                except TimeoutError:
                    versions.append(self._version)
            return self._completion(versions, "abort" if aborted.is_set() else "length")
        finally:
            self._running.pop(request.id, None)

    def _completion(self, versions: Sequence[int], reason: str) -> Completion:
        n = len(versions)
        return Completion(np.arange(n, dtype=np.int32), np.zeros(n, np.float32), np.array(versions, np.int32), reason)

    async def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            if name in self._running:
                self._running[name].set()
        async with self._changed:
            self._changed.notify_all()

    async def score(self, token_ids: np.ndarray) -> np.ndarray:
        return np.zeros(len(token_ids) - 1, np.float32)

    async def update_weights(self, update: WeightUpdate) -> None:
        await asyncio.sleep(self._load_seconds)
        self.loads.append(update)
        async with self._changed:
            self._version, self._lineage = update.version, update.lineage
            self._changed.notify_all()

    async def pause(self, mode: PauseMode) -> None:
        self._paused = True

    async def resume(self) -> None:
        self._paused = False

    async def status(self) -> EngineStatus:
        running = len(self._running)
        return EngineStatus(self._version, self._lineage, running, 0, self._slots, self._paused, 0.0, 0)

    async def close(self) -> None:
        await self.abort(list(self._running))
