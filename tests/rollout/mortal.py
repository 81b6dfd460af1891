"""A pool of engines that die, under a virtual clock."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from rljax.ledger.versions import Announced
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.engine_pool import EnginePool
from sidecar.protocol import (
    Completion,
    EngineError,
    EngineStatus,
    GenerateRequest,
    SamplingParams,
    WeightUpdate,
    WeightUpdateError,
)
from tests.modelled_engine import ModelledEngine
from tests.rollout.heard import Heard

V0, V1 = Announced(0, 1, "weights/v0"), Announced(1, 1, "weights/v1")


class Mortal(ModelledEngine):
    """Dies when told to, takes its time to load and to end, and refuses versions."""

    def __init__(
        self, seconds: float = 10.0, load: float = 0.0, end: float = 0.0, refuses: tuple[int, ...] = ()
    ) -> None:
        super().__init__(lambda _: seconds, load_seconds=load)
        self._end, self._refuses = end, refuses
        self.dead = asyncio.Event()
        self.closed = False

    async def generate(self, request: GenerateRequest) -> Completion:
        work, death = asyncio.ensure_future(super().generate(request)), asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise EngineError("it fell over")
            return work.result()
        finally:
            work.cancel()
            death.cancel()

    async def update_weights(self, update: WeightUpdate) -> None:
        if self.dead.is_set():
            raise EngineError("it fell over")
        await super().update_weights(update)
        if update.version in self._refuses:
            self._version = -1
            raise WeightUpdateError(f"no version {update.version}")

    async def status(self) -> EngineStatus:
        if self.closed:
            raise EngineError("it is closed")
        return dataclasses.replace(await super().status(), busy_seconds=1.0, tokens=8)

    async def close(self) -> None:
        await asyncio.sleep(self._end)
        self.closed = True
        await super().close()


def request(name: str = "a", min_version: int = 0) -> GenerateRequest:
    return GenerateRequest(name, np.array([7], np.int32), SamplingParams(max_new_tokens=4), min_version)


Act = Callable[[EnginePool, asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]


def with_pool(tmp_path: Path, engines: list[Any], act: Act, count: int = 1, **keys: Any) -> list[str]:
    """Runs ``act`` on a pool of ``count`` engines that serves version 0; returns the faults noted, in order.

    ``engines`` are handed out in turn; an exception among them is raised instead.
    """
    faults: list[str] = []

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        queue = iter(engines)

        async def start(_: int) -> Any:
            engine = next(queue)
            if isinstance(engine, Exception):
                raise engine
            return engine

        note = lambda kind, message: faults.append(f"{kind}: {message}")  # noqa: E731
        pool = EnginePool(start, count, tmp_path, Heard(note), call_timeout=100.0, **keys)
        async with asyncio.timeout(2000.0):
            await pool.start()
            await pool.load(V0)
            await act(pool, loop)
            await pool.close()

    run_virtual(main)
    return faults
