"""The engines of one explorer behind one door: balanced, versioned, held for validations, replaced when they die.

Nobody here counts on an engine's life. An engine that does not answer in time is replaced like one that died. A
request that comes back short, because it was aborted or its engine was lost, is sent again with the tokens that it has,
the rest of its budget, and a seed derived from both.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from rljax.failpoints import failpoint
from rljax.ledger.versions import Announced
from rljax.tasks.seeds import stable_hash
from sidecar.protocol import Completion, Engine, EngineError, GenerateRequest, WeightUpdate

T = TypeVar("T")

EngineFactory = Callable[[int], Awaitable[Engine]]
"""Starts engine number i."""

MAX_RESTARTS = 3
"""Restarts of one engine, without a version loaded in between, before the run gives up."""
CALL_TIMEOUT = 600.0
"""Seconds that an engine has for what it is asked besides generating, unless the pool is told otherwise."""


@dataclasses.dataclass
class _Seat:
    """One engine, and the requests that it serves with what calls each back."""

    index: int
    engine: Engine
    requests: dict[str, asyncio.Timeout] = dataclasses.field(default_factory=dict)
    busy_before: float = 0.0
    tokens_before: int = 0
    restarts: int = 0


class EnginePool:
    """Engines that serve one version each, and the requests in flight on them."""

    def __init__(
        self,
        factory: EngineFactory,
        count: int,
        run_dir: Path,
        on_fault: Callable[[str, str], None],
        *,
        call_timeout: float = CALL_TIMEOUT,
    ) -> None:
        """``on_fault(kind, message)`` hears of what the pool survives. An engine that takes longer than
        ``call_timeout`` seconds to start, load, score, abort or end hangs, and is replaced. How long it may generate is
        the caller's to say.
        """
        self._factory = factory
        self._count = count
        self._run_dir = run_dir
        self._on_fault = on_fault
        self._call_timeout = call_timeout
        self._seats: list[_Seat] = []
        self._open = asyncio.Event()
        self._open.set()
        self._loaded = asyncio.Condition()
        self._restart_lock = asyncio.Lock()
        self._withdrawals: set[asyncio.Task[None]] = set()
        self._failure: EngineError | None = None
        self._serial = 0
        self.serving: Announced | None = None

    async def start(self) -> None:
        """Starts the engines.

        Raises:
            EngineError: one did not start in time.
        """
        for index in range(self._count):
            self._seats.append(_Seat(index, await self._in_time(index, "it to start", self._factory(index))))

    async def close(self) -> None:
        """Ends the engines; one that does not end is left behind."""
        for withdrawal in self._withdrawals:
            withdrawal.cancel()
        await asyncio.gather(*self._withdrawals, return_exceptions=True)
        await asyncio.gather(*(self._if_it_answers(s.index, "it to end", s.engine.close()) for s in self._seats))
        self._seats.clear()

    async def load(self, announced: Announced) -> None:
        """Has every engine serve this version. An engine that cannot load it keeps its own.

        Raises:
            WeightUpdateError: an engine refused; it still serves what it had, and so does the pool.
            EngineError: an engine died or hung, and so did its successors.
        """
        failpoint("load")
        for seat in self._seats:
            await self._ask(seat, f"version {announced.version} to load", lambda engine: self._load(engine, announced))
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
            if self._failure is not None:
                raise self._failure
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
        """What every engine makes of these tokens; see `Engine.score`.

        Raises:
            EngineError: an engine died or hung, and so did its successors.
        """
        what = f"the log-probabilities of {len(token_ids)} tokens"
        return [await self._ask(seat, what, lambda engine: engine.score(token_ids)) for seat in self._seats]

    async def hold(self) -> None:
        """Holds new training requests and ends the running ones; each keeps its tokens and goes on at `release`.

        Raises:
            EngineError: an engine died or hung, and so did its successors.
        """
        if not self._open.is_set():
            return
        self._open.clear()
        for seat in self._seats:
            await self._abort(seat, list(seat.requests))

    def release(self) -> None:
        """Ends `hold`."""
        self._open.set()

    async def gauges(self) -> dict[str, float]:
        """Engine metrics, added up over the engines: busy seconds and tokens count restarts in."""
        total = {"busy_seconds": 0.0, "tokens": 0.0, "running": 0.0, "waiting": 0.0, "slots": 0.0}
        for seat in self._seats:
            status = await self._in_time(seat.index, "its status", seat.engine.status())
            total["busy_seconds"] += seat.busy_before + status.busy_seconds
            total["tokens"] += seat.tokens_before + status.tokens
            total["running"] += status.running
            total["waiting"] += status.waiting
            total["slots"] += status.slots
        return {**total, "engines": float(len(self._seats))}

    async def _once(self, request: GenerateRequest) -> Completion | None:
        """One engine's answer; None if the engine was lost."""
        seat = min(self._seats, key=lambda s: (len(s.requests), s.index))
        engine = seat.engine
        try:
            async with asyncio.timeout(None) as recall:
                seat.requests[request.id] = recall
                return await engine.generate(request)
        except EngineError as error:
            await self._restart(seat, engine, error)
            return None
        except TimeoutError:
            if recall.expired():
                return None
            raise
        except asyncio.CancelledError:
            # Whoever gave up is not kept waiting by the engine that may be the reason; whether it is shows soon.
            withdrawal = asyncio.ensure_future(self._withdraw(seat, request.id))
            self._withdrawals.add(withdrawal)
            withdrawal.add_done_callback(self._withdrawals.discard)
            raise
        finally:
            seat.requests.pop(request.id, None)

    async def _withdraw(self, seat: _Seat, request_id: str) -> None:
        try:
            await self._abort(seat, [request_id])
        except EngineError as error:
            self._failure = error  # nobody waits here; the next request says it

    async def _abort(self, seat: _Seat, request_ids: list[str]) -> None:
        await self._ask(seat, "requests to be aborted", lambda engine: engine.abort(request_ids))

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
        resumed = request.resumed_tokens + len(tokens)
        return dataclasses.replace(fresh, prompt_ids=prompt, sampling=sampling, resumed_tokens=resumed)

    async def _ask(self, seat: _Seat, what: str, call: Callable[[Engine], Awaitable[T]]) -> T:
        """Asks an engine and, if it dies or hangs over it, its successor."""
        while True:
            engine = seat.engine
            try:
                return await self._in_time(seat.index, what, call(engine))
            except EngineError as error:
                await self._restart(seat, engine, error)

    async def _in_time(self, index: int, what: str, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._call_timeout) as limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"engine {index} hangs: waited {self._call_timeout:g} s for {what}"
            raise EngineError(message) from None

    async def _load(self, engine: Engine, announced: Announced) -> None:
        path = str(self._run_dir / announced.path)
        await engine.update_weights(WeightUpdate(announced.version, announced.lineage, path))

    async def _if_it_answers(self, index: int, what: str, answer: Awaitable[T]) -> T | None:
        """For engines that are given up: what they do not answer is noted, and done without."""
        try:
            return await self._in_time(index, what, answer)
        except EngineError as error:
            self._on_fault("engine_left_behind", f"engine {index}: {error}")
            return None

    async def _restart(self, seat: _Seat, dead: Engine, error: EngineError) -> None:
        async with self._restart_lock:
            if self._failure is not None:
                raise self._failure
            if seat.engine is not dead:
                return
            seat.restarts += 1
            self._on_fault("engine_died", f"engine {seat.index}: {error}")
            if seat.restarts > MAX_RESTARTS:
                raise EngineError(f"engine {seat.index} died {seat.restarts} times in a row; the last time: {error}")
            status = await self._if_it_answers(seat.index, "its status", dead.status())
            if status is not None:
                seat.busy_before += status.busy_seconds
                seat.tokens_before += status.tokens
            await self._if_it_answers(seat.index, "it to end", dead.close())
            seat.engine = await self._in_time(seat.index, "it to start", self._factory(seat.index))
            now = asyncio.get_running_loop().time()
            for recall in seat.requests.values():
                with contextlib.suppress(RuntimeError):  # it has left an engine that died; one that hangs holds it fast
                    recall.reschedule(now)
            if self.serving is not None:
                what = f"version {self.serving.version} to load"
                await self._in_time(seat.index, what, self._load(seat.engine, self.serving))


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
