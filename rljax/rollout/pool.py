"""The engines of one explorer behind one door: balanced, versioned, held for validations, replaced when they die.

Nobody here counts on an engine's life. A request that comes back short, because it was aborted or its engine died, is
sent again with the tokens that it has, the rest of its budget, and a seed derived from both.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from rljax.failpoints import failpoint
from rljax.ledger.versions import Announced
from rljax.tasks.seeds import stable_hash
from sidecar.protocol import Completion, Engine, EngineError, GenerateRequest, WeightUpdate

EngineFactory = Callable[[int], Awaitable[Engine]]
"""Starts engine number i."""

MAX_RESTARTS = 3
"""Restarts of one engine, without a version loaded in between, before the run gives up."""


@dataclasses.dataclass
class _Seat:
    """One engine and what it is doing."""

    index: int
    engine: Engine
    requests: dict[str, None] = dataclasses.field(default_factory=dict)
    busy_before: float = 0.0
    tokens_before: int = 0
    restarts: int = 0


class EnginePool:
    """Engines that serve one version each, and the requests in flight on them."""

    def __init__(self, factory: EngineFactory, count: int, run_dir: Path, on_fault: Callable[[str, str], None]) -> None:
        """``on_fault(kind, message)`` hears of what the pool survives."""
        self._factory = factory
        self._count = count
        self._run_dir = run_dir
        self._on_fault = on_fault
        self._seats: list[_Seat] = []
        self._open = asyncio.Event()
        self._open.set()
        self._loaded = asyncio.Condition()
        self._restart_lock = asyncio.Lock()
        self._serial = 0
        self.serving: Announced | None = None

    async def start(self) -> None:
        """Starts the engines."""
        for index in range(self._count):
            self._seats.append(_Seat(index, await self._factory(index)))

    async def close(self) -> None:
        """Ends the engines."""
        for seat in self._seats:
            await seat.engine.close()
        self._seats.clear()

    async def load(self, announced: Announced) -> None:
        """Has every engine serve this version. An engine that cannot load it keeps its own.

        Raises:
            WeightUpdateError: an engine refused; it still serves what it had, and so does the pool.
            EngineError: an engine died and could not be started again.
        """
        failpoint("load")
        update = WeightUpdate(announced.version, announced.lineage, str(self._run_dir / announced.path))
        for seat in self._seats:
            try:
                await seat.engine.update_weights(update)
            except EngineError as error:
                await self._restart(seat, seat.engine, error)
                await seat.engine.update_weights(update)
            seat.restarts = 0
        async with self._loaded:
            self.serving = announced
            self._loaded.notify_all()

    async def generate(self, request: GenerateRequest, lineage: int, *, validation: bool = False) -> Completion:
        """Continues a prompt to its end, whatever happens to engines meanwhile.

        Waits while the pool is held (training requests only) and until weights of ``lineage`` or a later one serve.

        Raises:
            RequestError: the request can never be served.
            EngineError: engines keep dying.
        """
        parts: list[Completion] = []
        sampling = request.sampling
        while True:
            if not validation:
                await self._open.wait()
            async with self._loaded:
                await self._loaded.wait_for(lambda: self.serving is not None and self.serving.lineage >= lineage)
            if not validation and not self._open.is_set():
                continue
            part = await self._once(self._rest(request, parts))
            if part is None:
                continue
            parts.append(part)
            made = sum(len(p.token_ids) for p in parts)
            if part.finish_reason != "abort" or made >= sampling.max_new_tokens:
                return _join(parts)

    async def score(self, token_ids: np.ndarray) -> list[np.ndarray]:
        """What every engine makes of these tokens; see `Engine.score`."""
        return [await seat.engine.score(token_ids) for seat in self._seats]

    async def hold(self) -> None:
        """Holds new training requests and ends the running ones; each keeps its tokens and goes on at `release`."""
        self._open.clear()
        for seat in self._seats:
            await seat.engine.abort(list(seat.requests))

    def release(self) -> None:
        """Ends `hold`."""
        self._open.set()

    async def gauges(self) -> dict[str, float]:
        """Engine metrics, added up over the engines: busy seconds and tokens count restarts in."""
        total = {"busy_seconds": 0.0, "tokens": 0.0, "running": 0.0, "waiting": 0.0, "slots": 0.0}
        for seat in self._seats:
            status = await seat.engine.status()
            total["busy_seconds"] += seat.busy_before + status.busy_seconds
            total["tokens"] += seat.tokens_before + status.tokens
            total["running"] += status.running
            total["waiting"] += status.waiting
            total["slots"] += status.slots
        return {**total, "engines": float(len(self._seats))}

    async def _once(self, request: GenerateRequest) -> Completion | None:
        seat = min(self._seats, key=lambda s: (len(s.requests), s.index))
        engine = seat.engine
        seat.requests[request.id] = None
        try:
            return await engine.generate(request)
        except EngineError as error:
            await self._restart(seat, engine, error)
            return None
        except asyncio.CancelledError:
            await engine.abort([request.id])
            raise
        finally:
            seat.requests.pop(request.id, None)

    def _rest(self, request: GenerateRequest, parts: list[Completion]) -> GenerateRequest:
        """What is left to ask for. The id is new each time: an engine may still be ending the old one."""
        self._serial += 1
        fresh = dataclasses.replace(request, id=f"{request.id}#{self._serial}")
        tokens = np.concatenate([request.prompt_ids[:0], *(p.token_ids for p in parts)])
        if not len(tokens):
            return fresh
        rest = request.sampling.max_new_tokens - len(tokens)
        seed = stable_hash(request.sampling.seed, "resumed", *tokens.tolist())
        sampling = dataclasses.replace(request.sampling, max_new_tokens=rest, seed=seed)
        prompt = np.concatenate([request.prompt_ids, tokens]).astype(np.int32)
        return dataclasses.replace(fresh, prompt_ids=prompt, sampling=sampling)

    async def _restart(self, seat: _Seat, dead: Engine, error: EngineError) -> None:
        async with self._restart_lock:
            if seat.engine is not dead:
                return
            seat.restarts += 1
            self._on_fault("engine_died", f"engine {seat.index}: {error}")
            if seat.restarts > MAX_RESTARTS:
                raise EngineError(f"engine {seat.index} died {seat.restarts} times in a row; the last time: {error}")
            status = await dead.status()
            seat.busy_before += status.busy_seconds
            seat.tokens_before += status.tokens
            await dead.close()
            seat.engine = await self._factory(seat.index)
            if self.serving is not None:
                path = str(self._run_dir / self.serving.path)
                await seat.engine.update_weights(WeightUpdate(self.serving.version, self.serving.lineage, path))


def _join(parts: list[Completion]) -> Completion:
    """One completion out of the pieces of an interrupted one."""
    if len(parts) == 1:
        return parts[0]
    return Completion(
        np.concatenate([p.token_ids for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        np.concatenate([p.versions for p in parts]),
        "length" if parts[-1].finish_reason == "abort" else parts[-1].finish_reason,
    )
