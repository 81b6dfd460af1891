"""The engines of one explorer behind one door: balanced, versioned, held for validations, replaced when they die.

Nobody here counts on an engine's life. An engine that does not answer in time is replaced like one that died; until
its successor is ready, and where none gets ready, the others do the work: the pool fails when no engine is left. A
request that comes back short, because it was aborted or its engine was lost, is sent again with the tokens that it has,
the rest of its budget, and a seed derived from both.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.ledger.versions import Announced
from rljax.rollout.async_utils import all_or_none
from rljax.rollout.engine_events import EngineEvents
from rljax.rollout.engine_slot import EngineFactory, EngineSlot
from rljax.tasks.seeds import stable_hash
from sidecar.channels.versions import is_address
from sidecar.failpoints import failpoint
from sidecar.protocol import (
    Completion,
    Engine,
    EngineError,
    GenerateRequest,
    UpdatePolicy,
    WeightUpdate,
    WeightUpdateError,
)

CALL_TIMEOUT = 600.0
"""Seconds that an engine has for what it is asked besides generating, unless the pool is told otherwise."""
UNNOTICED = 8
"""One request more in so many is a load that nobody notices: by that much a group may stay together."""


class Scored(NamedTuple):
    """An engine's log-probabilities, float32 ``[n - 1]``, and the version that it says it has."""

    logprobs: np.ndarray
    version: int


async def scored(engine: Engine, token_ids: np.ndarray) -> Scored:
    """What an engine makes of these tokens, by its own account of itself."""
    logprobs = await engine.score(token_ids)
    return Scored(logprobs, (await engine.status()).version)


class EnginePool:
    """Engines that serve one version each, and the requests in flight on them. Implements `SeatEvents`.

    Attributes:
        serving: the version that all who serve have loaded; None before the first.
    """

    def __init__(
        self,
        factory: EngineFactory,
        count: int,
        run_dir: Path,
        events: EngineEvents,
        *,
        call_timeout: float = CALL_TIMEOUT,
        policy: UpdatePolicy = UpdatePolicy.IN_FLIGHT,
    ) -> None:
        """``events`` hears of what happens to the engines. One that takes longer than ``call_timeout`` seconds to
        start, load, score, abort or end hangs, and is replaced. How long it may generate is the caller's to say.
        ``policy`` is what an update does to the requests in flight.
        """
        self._factory = factory
        self._count = count
        self._run_dir = run_dir
        self._events = events
        self._call_timeout = call_timeout
        self._policy = policy
        self._slots: list[EngineSlot] = []
        self._open = asyncio.Event()
        self._open.set()
        self._wanted: Announced | None = None  # what `load` was asked for last: a successor loads this
        self._refusal: asyncio.Future[WeightUpdateError] | None = None  # with which a successor was refused it
        self._loaded = asyncio.Condition()
        self._withdrawals: set[asyncio.Task[None]] = set()
        self._serial = 0
        self.serving: Announced | None = None

    async def start(self) -> None:
        """Starts the engines.

        Raises:
            EngineError: one did not start in time.
        """
        slots = [EngineSlot(index, self, self._call_timeout) for index in range(self._count)]
        try:
            await all_or_none(slot.start() for slot in slots)
        finally:
            self._slots = [slot for slot in slots if slot.started]

    async def close(self) -> None:
        """Ends the engines; one that does not end is left behind."""
        for withdrawal in self._withdrawals:
            withdrawal.cancel()
        await asyncio.gather(*self._withdrawals, return_exceptions=True)
        await asyncio.gather(*(slot.close() for slot in self._slots))

    async def load(self, announced: Announced) -> None:
        """Has the engines serve this version. One that is being replaced loads it before it serves; one that refuses it
        while another serves it is replaced.

        Raises:
            WeightUpdateError: no engine could load it. All still serve what they had.
            EngineError: no engine is left.
        """
        failpoint("load")
        refusals: dict[EngineSlot, tuple[Engine, WeightUpdateError]] = {}
        self._wanted, self._refusal = announced, asyncio.get_running_loop().create_future()
        await self._tell()  # successors that were refused the version before this one wait to hear of it
        while not any(slot.serves is announced for slot in self._there()):
            if stale := [slot for slot in self._there() if slot not in refusals]:
                await self._load_on(stale, announced, refusals)
            elif refusals:
                raise next(iter(refusals.values()))[1]
            elif self._refusal.done():
                raise self._refusal.result()
            else:
                await self._one_back(self._refusal)
        for slot, (engine, error) in refusals.items():
            self.fault("load_failed", f"engine {slot.index}: version {announced.version}: {error}")
            slot.replace(engine, EngineError(f"it cannot load version {announced.version}, which others serve"))
        self.serving = announced
        await self._tell()

    async def generate(self, request: GenerateRequest, lineage: int, *, validation: bool = False) -> Completion:
        """Continues a prompt to its end, whatever happens to engines meanwhile.

        Waits while the pool is held (training requests only) and until weights of ``lineage`` or a later one serve.

        Raises:
            RequestError: the request can never be served.
            EngineError: no engine is left.
        """
        parts: list[Completion] = []
        sampling = request.sampling
        while True:
            if not validation:
                await self._open.wait()
            async with self._loaded:
                await self._loaded.wait_for(lambda: self.serving is not None and self.serving.lineage >= lineage)
            slot = await self._free_slot(request.affinity)
            if not validation and not self._open.is_set():
                continue
            part = await self._once(slot, self._rest(request, parts))
            if part is None:
                continue
            parts.append(part)
            made = sum(len(p.token_ids) for p in parts)
            if part.finish_reason != "abort" or made >= sampling.max_new_tokens:
                return _join(parts)

    async def score(self, token_ids: np.ndarray) -> list[Scored]:
        """What every engine that is there makes of these tokens, at least one; see `Engine.score`.

        Raises:
            EngineError: no engine is left.
        """
        what = f"the log-probabilities of {len(token_ids)} tokens"
        while True:
            asked = [slot.ask(what, lambda engine: scored(engine, token_ids)) for slot in self._there()]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            if scores := [outcome for outcome in _but_for(EngineError, outcomes) if outcome is not None]:
                return scores
            if not self._there():
                await self._one_back()

    async def hold(self) -> None:
        """Holds new training requests and ends the running ones; each keeps its tokens and goes on at `release`.

        Raises:
            EngineError: no engine is left.
        """
        if not self._open.is_set():
            return
        self._open.clear()
        # What an engine has that dies over this comes back when it is replaced, and is held then.
        aborts = [self._abort(slot, list(slot.requests)) for slot in self._there()]
        _but_for(EngineError, await asyncio.gather(*aborts, return_exceptions=True))
        if not self._there():
            await self._one_back()

    def release(self) -> None:
        """Ends `hold`."""
        self._open.set()

    async def gauges(self) -> dict[str, float]:
        """Engine metrics, added up over the engines: busy seconds and tokens count restarts in."""
        total = {"busy_seconds": 0.0, "tokens": 0.0, "running": 0.0, "waiting": 0.0, "slots": 0.0}
        for slot in self._slots:
            status = await slot.status()
            total["busy_seconds"] += slot.busy_seconds
            total["tokens"] += slot.tokens
            if status is None:
                continue
            total["running"] += status.running
            total["waiting"] += status.waiting
            total["slots"] += status.slots
        return {**total, "engines": float(len(self._slots))}

    async def _free_slot(self, affinity: str) -> EngineSlot:
        """The seat with the fewest requests, or one where this affinity is at work, if that has hardly more; waits
        while all are vacant.

        Where the least loaded seat has n requests, one with up to n + n // `UNNOTICED` counts as hardly more: at low
        load a group is spread, because an idle engine is worth more than a shared prefix; at high load it stays whole.
        """
        while not (free := self._there()):
            await self._one_back()
        least = min(free, key=_load)
        at_work = [slot for slot in free if affinity and affinity in slot.affinities]
        near = min(at_work, key=_load, default=least)
        most = len(least.requests) + len(least.requests) // UNNOTICED
        return near if len(near.requests) <= most else least

    def _there(self) -> list[EngineSlot]:
        """The seats that have an engine."""
        return [slot for slot in self._slots if slot.there]

    async def _one_back(self, *others: asyncio.Future[Any]) -> None:
        """Waits until a vacant seat is taken or given up, or one of ``others`` is done.

        Raises:
            EngineError: all seats are given up.
        """
        coming = [slot.replacement for slot in self._slots if slot.replacement is not None and slot.failure is None]
        if not coming:
            raise EngineError("; ".join(str(slot.failure) for slot in self._slots))
        await asyncio.wait([*coming, *others], return_when=asyncio.FIRST_COMPLETED)

    async def _tell(self) -> None:
        async with self._loaded:
            self._loaded.notify_all()

    async def _once(self, slot: EngineSlot, request: GenerateRequest) -> Completion | None:
        """One engine's answer; None if the engine was lost."""
        engine = slot.engine
        try:
            async with asyncio.timeout(None) as recall:
                slot.enter(request, recall)
                return await engine.generate(request)
        except EngineError as error:
            slot.replace(engine, error)
            return None
        except TimeoutError:
            if recall.expired():
                return None
            raise
        except asyncio.CancelledError:
            # Whoever gave up is not kept waiting by the engine that may be the reason; whether it is shows soon.
            withdrawal = asyncio.ensure_future(self._withdraw(slot, request.id))
            self._withdrawals.add(withdrawal)
            withdrawal.add_done_callback(self._withdrawals.discard)
            raise
        finally:
            slot.leave(request)

    async def _withdraw(self, slot: EngineSlot, request_id: str) -> None:
        # Nobody waits here. A successor is asked as well: that it hangs, too, is found before a request needs it.
        while slot.failure is None:
            try:
                await self._abort(slot, [request_id])
                break
            except EngineError:
                if slot.replacement is not None:
                    await asyncio.wait([slot.replacement])

    async def _abort(self, slot: EngineSlot, request_ids: list[str]) -> None:
        await slot.ask("requests to be aborted", lambda engine: engine.abort(request_ids))

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

    async def _load(self, engine: Engine, announced: Announced) -> None:
        path = announced.path if is_address(announced.path) else str(self._run_dir / announced.path)
        await engine.update_weights(WeightUpdate(announced.version, announced.lineage, path, self._policy))

    async def _load_on(
        self,
        slots: list[EngineSlot],
        announced: Announced,
        refusals: dict[EngineSlot, tuple[Engine, WeightUpdateError]],
    ) -> None:
        """Has these load it, and notes who refuses; who dies or hangs is being replaced by then."""
        engines = [slot.engine for slot in slots]
        loads = [slot.loaded(announced, lambda engine: self._load(engine, announced)) for slot in slots]
        # An engine that is disturbed while it loads cannot be used any more: none waits for another's refusal.
        outcomes = _but_for((EngineError, WeightUpdateError), await asyncio.gather(*loads, return_exceptions=True))
        for slot, engine, outcome in zip(slots, engines, outcomes, strict=True):
            if isinstance(outcome, WeightUpdateError):
                refusals[slot] = engine, outcome

    async def vacant(self, slot: EngineSlot) -> Engine:
        """See `SeatEvents.vacant`."""
        return await self._factory(slot.index)

    def fault(self, kind: str, message: str) -> None:
        """See `SeatEvents.fault`."""
        self._events.fault(kind, message)

    async def started(self, slot: EngineSlot, successor: Engine) -> None:
        """See `SeatEvents.started`: has it load what `load` was asked for last, until there is nothing newer; waits for
        that where one is refused.
        """
        while (wanted := self._wanted) is not None and slot.serves is not wanted:
            try:
                await slot.in_time(f"version {wanted.version} to load", self._load(successor, wanted))
                await slot.in_time("the log-probabilities of the probe", self._events.loaded(successor, wanted))
                slot.serves = wanted
            except WeightUpdateError as error:
                # It may be no fault of the engine's: the version may have been superseded, and deleted. Then the next
                # one is being loaded or soon will be. Where no engine is there, `load` hears of it.
                if self._refusal is not None and not self._refusal.done():
                    self._refusal.set_result(error)
                await slot.in_time(f"a version in place of {wanted.version}: {error}", self._other_than(wanted))

    async def _other_than(self, refused: Announced) -> None:
        async with self._loaded:
            await self._loaded.wait_for(lambda: self._wanted is not refused)


def _but_for(tolerated: type[Exception] | tuple[type[Exception], ...], outcomes: Sequence[Any]) -> list[Any]:
    """Raises the first exception among the outcomes that is not tolerated. The outcomes, None for an EngineError."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, tolerated):
            raise outcome
    return [None if isinstance(outcome, EngineError) else outcome for outcome in outcomes]


def _load(slot: EngineSlot) -> tuple[int, int]:
    return len(slot.requests), slot.index


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
