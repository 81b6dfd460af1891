"""The engine pool of one explorer: balances requests, loads versions, holds for validations, replaces dead engines.

No caller depends on one engine's life. An engine that does not answer in time is replaced like one that died; until its
successor is ready, and where none gets ready, the others do the work: the pool fails when no engine is left. A request
that comes back short, because it was aborted or its engine was lost, is sent again with the tokens that it has, the
rest of its budget, and a seed derived from both.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.ledger.announced import Announced
from rljax.rollout.async_utils import all_or_none
from rljax.rollout.engine_events import Answered, EngineEvents
from rljax.rollout.engine_slot import EngineFactory, EngineSlot, Scored, raise_unless
from rljax.rollout.engine_speed import loads
from rljax.rollout.listener import Listener, Tell, join, remaining
from rljax.rollout.recent_versions import RecentVersions
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
"""Default limit in seconds of a call to an engine other than ``generate``."""
UNNOTICED = 8
"""A group stays on one engine while that has at most 1/`UNNOTICED` more load than the least loaded one."""


class EnginePool:
    """Engines that serve one version each, and the requests in flight on them. Implements `SlotEvents`.

    Attributes:
        serving: the version that all engines that serve have loaded; None before the first.
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
        held: int = 0,
        answered: Answered | None = None,
    ) -> None:
        """Creates the pool; `start` starts its engines.

        ``events`` receives the events of the engines. An engine that takes longer than ``call_timeout`` seconds to
        start, load, score, abort or end hangs, and is replaced. How long it may generate is up to the caller.
        ``policy`` says what an update does to the requests in flight. Engines hold ``held`` versions at once, 0 where a
        new one takes the old one's place. ``answered`` is told of each request that comes back.
        """
        self._factory = factory
        self._count = count
        self._run_dir = run_dir
        self._events = events
        self._call_timeout = call_timeout
        self._policy = policy
        self._answered = answered
        self._slots: list[EngineSlot] = []
        self._open = asyncio.Event()
        self._open.set()
        self._wanted: Announced | None = None  # what `load` was asked for last: a successor loads this
        self._refusal: asyncio.Future[WeightUpdateError] | None = None  # the error with which a successor refused it
        self._loaded = asyncio.Condition()
        self._recent = RecentVersions(held)
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
        """Loads this version into the engines. An engine that is being replaced loads it before it serves; one that
        refuses it while another serves it is replaced.

        Raises:
            WeightUpdateError: no engine could load it. All still serve what they had.
            EngineError: no engine is left.
        """
        failpoint("load")
        refusals: dict[EngineSlot, tuple[Engine, WeightUpdateError]] = {}
        self._wanted, self._refusal = announced, asyncio.get_running_loop().create_future()
        await self._notify_loaded()  # successors that were refused the version before this one wait for it
        while not any(slot.serves is announced for slot in self._live_slots()):
            if stale := [slot for slot in self._live_slots() if slot not in refusals]:
                await self._load_on(stale, announced, refusals)
            elif refusals:
                raise next(iter(refusals.values()))[1]
            elif self._refusal.done():
                raise self._refusal.result()
            else:
                await self._wait_for_slot(self._refusal)
        for slot, (engine, error) in refusals.items():
            self.fault("load_failed", f"engine {slot.index}: version {announced.version}: {error}")
            slot.replace(engine, EngineError(f"it cannot load version {announced.version}, which others serve"))
        self.serving = announced
        self._recent.add(announced)
        await self._notify_loaded()

    @property
    def pins(self) -> bool:
        """True where engines hold several versions, and requests in flight keep theirs at an update."""
        return self._policy is UpdatePolicy.PIN

    async def version_from(self, version: int, lineage: int) -> int:
        """Returns the version that serves, as soon as it is this one or a newer one, of ``lineage`` or a later one; a
        newer one, where successors have loaded that and no other engine is left.
        """
        async with self._loaded:
            await self._loaded.wait_for(
                lambda: (serving := self.serving) and serving.lineage >= lineage and serving.version >= version
            )
        assert self.serving is not None
        first = [slot.since.version for slot in self._live_slots() if slot.since is not None]
        return max(self.serving.version, min(first, default=0))

    async def generate(
        self, request: GenerateRequest, lineage: int, *, validation: bool = False, tell: Tell | None = None
    ) -> Completion:
        """Continues a prompt to its end, whatever happens to engines meanwhile.

        Waits while the pool is held (training requests only) and until weights of ``lineage`` or a later one serve.
        ``tell`` is told the tokens as they are sampled; what it was told stays part of the completion.

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
            slot = await self._free_slot(request.affinity, request.min_version if request.pinned else None)
            if not validation and not self._open.is_set():
                continue
            listener = None if tell is None else Listener(tell)
            self._serial += 1
            rest = remaining(request, parts, f"{request.id}#{self._serial}")
            part = await self._generate_once(slot, rest, listener)
            if part is None:
                continue
            parts.append(part)
            made = sum(len(p.token_ids) for p in parts)
            if part.finish_reason != "abort" or made >= sampling.max_new_tokens:
                whole = join(parts)
                return dataclasses.replace(whole, finish_reason="length") if whole.finish_reason == "abort" else whole

    async def score(
        self, token_ids: np.ndarray, routes: np.ndarray | None = None, most: int | None = None
    ) -> list[Scored]:
        """Returns the log-probabilities of these tokens by every live engine, at least one, or by so many at ``most``,
        those with the fewest such questions; see `Engine.score`.

        Raises:
            EngineError: no engine is left.
        """
        while True:
            asked = [s.score(token_ids, routes) for s in sorted(self._live_slots(), key=lambda s: s.questions)[:most]]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            if scores := [outcome for outcome in raise_unless(EngineError, outcomes) if outcome is not None]:
                return scores
            if not self._live_slots():
                await self._wait_for_slot()

    async def check(self) -> None:
        """Finds the engines that have died, or hang, while nobody asked them anything.

        Raises:
            EngineError: no engine is left.
        """
        await self._ask_all([slot.check() for slot in self._live_slots()])

    async def hold(self) -> None:
        """Holds new training requests and ends the running ones; each keeps its tokens and goes on at `release`.

        Raises:
            EngineError: no engine is left.
        """
        if not self._open.is_set():
            return
        self._open.clear()
        # Requests of an engine that dies here come back when it is replaced, and are held then.
        await self._ask_all([self._abort(slot, list(slot.requests)) for slot in self._live_slots()])

    def release(self) -> None:
        """Ends `hold`: held requests go on."""
        self._open.set()

    def forgive(self) -> None:
        """Forgets the restarts of the slots whose engine has answered a request since it started. Call it after each
        reply where no second version is ever loaded, as of a judge or a server: else few deaths in all its life would
        end a slot. One that dies at each request is never forgiven, however well the others answer.
        """
        for slot in self._live_slots():
            if slot.answers:
                slot.forgive()

    async def gauges(self) -> dict[str, float]:
        """Returns engine metrics, added up over the engines: busy seconds and tokens include those before restarts."""
        total = {"busy_seconds": 0.0, "tokens": 0.0, "running": 0.0, "waiting": 0.0, "slots": 0.0, "compiling": 0.0}
        for slot in self._slots:
            status = await slot.status()
            total["busy_seconds"] += slot.busy_seconds
            total["tokens"] += slot.tokens
            if status is None:
                continue
            total["running"] += status.running
            total["waiting"] += status.waiting
            total["slots"] += status.slots
            total["compiling"] += status.details.get("compiling", 0.0)
        return {**total, "engines": float(len(self._slots))}

    async def _free_slot(self, affinity: str, pinned: int | None = None) -> EngineSlot:
        """Returns the slot with the least load, or one that already runs this affinity if it has hardly more;
        waits while no slot has an engine. Of a version that a request is pinned to a successor may have none.

        The load is the number of requests; of an engine that is slower than others, as many more as `loads` says, so
        that a request goes where its tokens are to be expected first. Where the least loaded slot has n, one with up to
        n + n // `UNNOTICED` counts as hardly more: at low load a group is spread, because an idle engine is worth more
        than a shared prefix; at high load it stays whole.
        """
        while not (free := self._live_slots()):
            await self._wait_for_slot()
        if pinned is not None:
            free = [slot for slot in free if slot.since is not None and slot.since.version <= pinned] or free
        now = asyncio.get_running_loop().time()
        found = zip(loads([slot.speed for slot in free], now), (slot.index for slot in free), free, strict=True)
        ranked = sorted(found)
        least, _, first = ranked[0]
        near = ((load, slot) for load, _, slot in ranked if affinity and affinity in slot.affinities)
        load, together = next(near, (least, first))
        return together if load <= least + least // UNNOTICED else first

    def _live_slots(self) -> list[EngineSlot]:
        """Returns the slots that have an engine."""
        return [slot for slot in self._slots if slot.alive]

    async def _wait_for_slot(self, *others: asyncio.Future[Any]) -> None:
        """Waits until an empty slot has an engine again or is given up, or one of ``others`` is done.

        Raises:
            EngineError: all slots are given up.
        """
        coming = [slot.replacement for slot in self._slots if slot.replacement is not None and slot.failure is None]
        if not coming:
            raise EngineError("; ".join(str(slot.failure) for slot in self._slots))
        await asyncio.wait([*coming, *others], return_when=asyncio.FIRST_COMPLETED)

    async def _notify_loaded(self) -> None:
        async with self._loaded:
            self._loaded.notify_all()

    async def _generate_once(
        self, slot: EngineSlot, request: GenerateRequest, listener: Listener | None
    ) -> Completion | None:
        """Returns the completion of one engine; if the engine was lost or the request was recalled, what the listener
        has heard of it, or None.
        """
        engine, began = slot.engine, time.time()
        try:
            async with asyncio.timeout(None) as recall:
                slot.enter(request, recall)
                if listener is None:
                    done = await engine.generate(request)
                else:
                    done = await listener.generate(engine, dataclasses.replace(request, followed=True))
                slot.answered(engine, request, len(done.token_ids))
                if self._answered is not None:
                    self._answered(slot.index, request, began, done)
                return done
        except EngineError as error:
            slot.replace(engine, error)
        except TimeoutError:
            if not recall.expired():
                raise
        except asyncio.CancelledError:
            # A cancelled caller does not wait for an engine that may hang; the abort finds out whether it does.
            withdrawal = asyncio.ensure_future(self._withdraw(slot, request.id))
            self._withdrawals.add(withdrawal)
            withdrawal.add_done_callback(self._withdrawals.discard)
            raise
        finally:
            slot.leave(request)
        return None if listener is None else listener.heard()

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

    async def _ask_all(self, asked: Sequence[Awaitable[None]]) -> None:
        raise_unless(EngineError, await asyncio.gather(*asked, return_exceptions=True))
        if not self._live_slots():
            await self._wait_for_slot()

    async def _load(self, engine: Engine, announced: Announced) -> None:
        path = announced.path if is_address(announced.path) else str(self._run_dir / announced.path)
        await engine.update_weights(WeightUpdate(announced.version, announced.lineage, path, self._policy))

    async def _load_on(
        self,
        slots: list[EngineSlot],
        announced: Announced,
        refusals: dict[EngineSlot, tuple[Engine, WeightUpdateError]],
    ) -> None:
        """Loads the version into these slots, and records who refuses it; engines that die or
        hang are being replaced by then.
        """
        engines = [slot.engine for slot in slots]
        loads = [slot.loaded(announced, lambda engine: self._load(engine, announced)) for slot in slots]
        # An engine that is cancelled while it loads cannot be used any more: all loads run to their end.
        outcomes = raise_unless((EngineError, WeightUpdateError), await asyncio.gather(*loads, return_exceptions=True))
        for slot, engine, outcome in zip(slots, engines, outcomes, strict=True):
            if isinstance(outcome, WeightUpdateError):
                refusals[slot] = engine, outcome

    async def start_engine(self, slot: EngineSlot) -> Engine:
        """Implements `SlotEvents.start_engine`."""
        return await self._factory(slot.index)

    def fault(self, kind: str, message: str) -> None:
        """Implements `SlotEvents.fault`."""
        self._events.fault(kind, message)

    async def prepare(self, slot: EngineSlot, successor: Engine) -> None:
        """Implements `SlotEvents.prepare`: loads the versions that requests may be pinned to, and the one that `load`
        was last asked for, until there is nothing newer; where that is refused, waits for another version.
        """

        here: list[Announced] = []

        async def load(announced: Announced) -> None:
            if announced not in here:
                await slot.in_time(f"version {announced.version} to load", self._load(successor, announced))
                here.append(announced)

        while (wanted := self._wanted) is not None and slot.serves is not wanted:
            try:
                slot.since = await self._recent.load_before(wanted, load)  # others may have passed meanwhile
                await load(wanted)
                await slot.in_time("the log-probabilities of the probe", self._events.loaded(successor, wanted))
                slot.serves = wanted
                slot.since = slot.since or wanted
            except WeightUpdateError as error:
                # It may be no fault of the engine's: the version may have been superseded, and deleted. Then the next
                # one is being loaded or soon will be. Where no engine is alive, `load` raises it.
                if self._refusal is not None and not self._refusal.done():
                    self._refusal.set_result(error)
                await slot.in_time(f"a version in place of {wanted.version}: {error}", self._wait_for_another(wanted))

    async def _wait_for_another(self, refused: Announced) -> None:
        async with self._loaded:
            await self._loaded.wait_for(lambda: self._wanted is not refused)
