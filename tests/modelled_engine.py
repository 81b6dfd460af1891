"""An engine with a modelled latency for each request, for runs on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from sidecar.protocol import Completion, EngineStatus, GenerateRequest, PauseMode, WeightUpdate


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

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
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
