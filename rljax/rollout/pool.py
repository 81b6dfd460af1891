"""The engines of one explorer behind one door: balanced, versioned, held for validations, replaced when they die.

Nobody here counts on an engine's life. An engine that does not answer in time is replaced like one that died; until
its successor is ready, and where none gets ready, the others do the work: the pool fails when no engine is left. A
request that comes back short, because it was aborted or its engine was lost, is sent again with the tokens that it has,
the rest of its budget, and a seed derived from both.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.ledger.versions import Announced
from rljax.rollout.seat import EngineFactory, Seat
from rljax.rollout.together import all_or_none
from rljax.tasks.seeds import stable_hash
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
from sidecar.versions import is_address

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
    """Engines that serve one version each, and the requests in flight on them.

    Attributes:
        serving: the version that all who serve have loaded; None before the first.
        inspect: looks at a successor that has loaded ``serving``, before it gets a request; raises where it is no good.
    """

    def __init__(
        self,
        factory: EngineFactory,
        count: int,
        run_dir: Path,
        on_fault: Callable[[str, str], None],
        *,
        call_timeout: float = CALL_TIMEOUT,
        policy: UpdatePolicy = UpdatePolicy.IN_FLIGHT,
    ) -> None:
        """``on_fault(kind, message)`` hears of what the pool survives. An engine that takes longer than
        ``call_timeout`` seconds to start, load, score, abort or end hangs, and is replaced. How long it may generate is
        the caller's to say. ``policy`` is what an update does to the requests in flight.
        """
        self._factory = factory
        self._count = count
        self._run_dir = run_dir
        self._on_fault = on_fault
        self._call_timeout = call_timeout
        self._policy = policy
        self._seats: list[Seat] = []
        self._open = asyncio.Event()
        self._open.set()
        self._wanted: Announced | None = None  # what `load` was asked for last: a successor loads this
        self._refusal: asyncio.Future[WeightUpdateError] | None = None  # with which a successor was refused it
        self._loaded = asyncio.Condition()
        self._withdrawals: set[asyncio.Task[None]] = set()
        self._serial = 0
        self.serving: Announced | None = None
        self.inspect: Callable[[Engine, Announced], Awaitable[None]] | None = None

    async def start(self) -> None:
        """Starts the engines.

        Raises:
            EngineError: one did not start in time.
        """
        seats = [
            Seat(index, self._factory, self._catch_up, self._on_fault, self._call_timeout)
            for index in range(self._count)
        ]
        try:
            await all_or_none(seat.start() for seat in seats)
        finally:
            self._seats = [seat for seat in seats if seat.started]

    async def close(self) -> None:
        """Ends the engines; one that does not end is left behind."""
        for withdrawal in self._withdrawals:
            withdrawal.cancel()
        await asyncio.gather(*self._withdrawals, return_exceptions=True)
        await asyncio.gather(*(seat.close() for seat in self._seats))

    async def load(self, announced: Announced) -> None:
        """Has the engines serve this version. One that is being replaced loads it before it serves; one that refuses it
        while another serves it is replaced.

        Raises:
            WeightUpdateError: no engine could load it. All still serve what they had.
            EngineError: no engine is left.
        """
        failpoint("load")
        refusals: dict[Seat, tuple[Engine, WeightUpdateError]] = {}
        self._wanted, self._refusal = announced, asyncio.get_running_loop().create_future()
        await self._tell()  # successors that were refused the version before this one wait to hear of it
        while not any(seat.serves is announced for seat in self._there()):
            if stale := [seat for seat in self._there() if seat not in refusals]:
                await self._load_on(stale, announced, refusals)
            elif refusals:
                raise next(iter(refusals.values()))[1]
            elif self._refusal.done():
                raise self._refusal.result()
            else:
                await self._one_back(self._refusal)
        for seat, (engine, error) in refusals.items():
            self._on_fault("load_failed", f"engine {seat.index}: version {announced.version}: {error}")
            seat.replace(engine, EngineError(f"it cannot load version {announced.version}, which others serve"))
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
            seat = await self._free_seat(request.affinity)
            if not validation and not self._open.is_set():
                continue
            part = await self._once(seat, self._rest(request, parts))
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
            asked = [seat.ask(what, lambda engine: scored(engine, token_ids)) for seat in self._there()]
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
        aborts = [self._abort(seat, list(seat.requests)) for seat in self._there()]
        _but_for(EngineError, await asyncio.gather(*aborts, return_exceptions=True))
        if not self._there():
            await self._one_back()

    def release(self) -> None:
        """Ends `hold`."""
        self._open.set()

    async def gauges(self) -> dict[str, float]:
        """Engine metrics, added up over the engines: busy seconds and tokens count restarts in."""
        total = {"busy_seconds": 0.0, "tokens": 0.0, "running": 0.0, "waiting": 0.0, "slots": 0.0}
        for seat in self._seats:
            status = await seat.status()
            total["busy_seconds"] += seat.busy_seconds
            total["tokens"] += seat.tokens
            if status is None:
                continue
            total["running"] += status.running
            total["waiting"] += status.waiting
            total["slots"] += status.slots
        return {**total, "engines": float(len(self._seats))}

    async def _free_seat(self, affinity: str) -> Seat:
        """The seat with the fewest requests, or one where this affinity is at work, if that has hardly more; waits
        while all are vacant.

        Where the least loaded seat has n requests, one with up to n + n // `UNNOTICED` counts as hardly more: at low
        load a group is spread, because an idle engine is worth more than a shared prefix; at high load it stays whole.
        """
        while not (free := self._there()):
            await self._one_back()
        least = min(free, key=_load)
        at_work = [seat for seat in free if affinity and affinity in seat.affinities]
        near = min(at_work, key=_load, default=least)
        most = len(least.requests) + len(least.requests) // UNNOTICED
        return near if len(near.requests) <= most else least

    def _there(self) -> list[Seat]:
        """The seats that have an engine."""
        return [seat for seat in self._seats if seat.there]

    async def _one_back(self, *others: asyncio.Future[Any]) -> None:
        """Waits until a vacant seat is taken or given up, or one of ``others`` is done.

        Raises:
            EngineError: all seats are given up.
        """
        coming = [seat.replacement for seat in self._seats if seat.replacement is not None and seat.failure is None]
        if not coming:
            raise EngineError("; ".join(str(seat.failure) for seat in self._seats))
        await asyncio.wait([*coming, *others], return_when=asyncio.FIRST_COMPLETED)

    async def _tell(self) -> None:
        async with self._loaded:
            self._loaded.notify_all()

    async def _once(self, seat: Seat, request: GenerateRequest) -> Completion | None:
        """One engine's answer; None if the engine was lost."""
        engine = seat.engine
        try:
            async with asyncio.timeout(None) as recall:
                seat.enter(request, recall)
                return await engine.generate(request)
        except EngineError as error:
            seat.replace(engine, error)
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
            seat.leave(request)

    async def _withdraw(self, seat: Seat, request_id: str) -> None:
        # Nobody waits here. A successor is asked as well: that it hangs, too, is found before a request needs it.
        while seat.failure is None:
            try:
                await self._abort(seat, [request_id])
                break
            except EngineError:
                if seat.replacement is not None:
                    await asyncio.wait([seat.replacement])

    async def _abort(self, seat: Seat, request_ids: list[str]) -> None:
        await seat.ask("requests to be aborted", lambda engine: engine.abort(request_ids))

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
        self, seats: list[Seat], announced: Announced, refusals: dict[Seat, tuple[Engine, WeightUpdateError]]
    ) -> None:
        """Has these load it, and notes who refuses; who dies or hangs is being replaced by then."""
        engines = [seat.engine for seat in seats]
        loads = [seat.loaded(announced, lambda engine: self._load(engine, announced)) for seat in seats]
        # An engine that is disturbed while it loads cannot be used any more: none waits for another's refusal.
        outcomes = _but_for((EngineError, WeightUpdateError), await asyncio.gather(*loads, return_exceptions=True))
        for seat, engine, outcome in zip(seats, engines, outcomes, strict=True):
            if isinstance(outcome, WeightUpdateError):
                refusals[seat] = engine, outcome

    async def _catch_up(self, seat: Seat, successor: Engine) -> None:
        """Loads what `load` was asked for last, until there is nothing newer; waits for that where one is refused."""
        while (wanted := self._wanted) is not None and seat.serves is not wanted:
            try:
                await seat.in_time(f"version {wanted.version} to load", self._load(successor, wanted))
                if self.inspect is not None:
                    await seat.in_time("the log-probabilities of the probe", self.inspect(successor, wanted))
                seat.serves = wanted
            except WeightUpdateError as error:
                # It may be no fault of the engine's: the version may have been superseded, and deleted. Then the next
                # one is being loaded or soon will be. Where no engine is there, `load` hears of it.
                if self._refusal is not None and not self._refusal.done():
                    self._refusal.set_result(error)
                await seat.in_time(f"a version in place of {wanted.version}: {error}", self._other_than(wanted))

    async def _other_than(self, refused: Announced) -> None:
        async with self._loaded:
            await self._loaded.wait_for(lambda: self._wanted is not refused)


def _but_for(tolerated: type[Exception] | tuple[type[Exception], ...], outcomes: Sequence[Any]) -> list[Any]:
    """Raises the first exception among the outcomes that is not tolerated. The outcomes, None for an EngineError."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, tolerated):
            raise outcome
    return [None if isinstance(outcome, EngineError) else outcome for outcome in outcomes]


def _load(seat: Seat) -> tuple[int, int]:
    return len(seat.requests), seat.index


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
