"""The explorer: runs validations that are due, loads the newest version, claims tasks, and settles them. Runs until
it is stopped or the run ends.

One task does these in turn; the groups run concurrently, each in tasks of its own, so that nothing waits for the
slowest of anything. Time comes from the event loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rljax.config.fields import named_explorer
from rljax.ledger import claims, processes, validations, versions
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.claims import Claim, ClaimResult, TasksetSize, allowed, validating
from rljax.ledger.database import Database, LedgerError, StaleWriterError
from rljax.ledger.transaction import Transaction, reads
from rljax.observe.busy import Gathered
from rljax.observe.trace import NullTrace, Trace
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.group_runner import GroupRunner
from rljax.rollout.parity import EngineChecks
from rljax.rollout.validation import ValidationPlan, validate
from rljax.tasks.task import BadRow, Taskset
from sidecar.failpoints import failpoint
from sidecar.protocol import EngineError, WeightsGoneError, WeightUpdateError

log = logging.getLogger(__name__)

HEARTBEAT = 1.0
"""Seconds between heartbeats."""
GAUGES_SECONDS = 5.0
"""Seconds that the engines have to report gauges before a heartbeat goes out with the last ones."""
SHORT = 1e-3
"""Seconds in a moment for which an event loop may be held up without a span."""
LOOK_AGAIN = 1.0
"""Seconds between checks for weights that are gone."""
LOAD_TRIES = 5
"""Tries to load a version, with a second between them, after which the explorer fails."""
CLAIM_LIMIT = 256
"""Groups claimed in one transaction."""


class Explorer:
    """Generates ahead of the learner, as far as the ledger allows."""

    def __init__(
        self,
        ledger: AsyncDatabase,
        name: str,
        pool: EnginePool,
        runner: GroupRunner,
        deadlines: PausableDeadlines,
        tasksets: Mapping[str, Taskset],
        weights: Mapping[str, float],
        plan: ValidationPlan,
        checks: EngineChecks,
        *,
        wait_timeout: float,
        trace: Trace | NullTrace,
        heartbeat: float = HEARTBEAT,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Creates the explorer: ``ledger`` is closed when `run` ends; ``weights`` are the shares of the tasksets;
        ``wait_timeout`` in seconds bounds every wait for the learner; ``heartbeat`` is the seconds between two that
        tell the ledger that it lives; ``prepare`` runs before the engines start, and
        what it raises ends the explorer.
        """
        self._ledger = ledger
        self._name = name
        self._pool = pool
        self._runner = runner
        self._deadlines = deadlines
        self._tasksets = tasksets
        self._weights = weights
        self._plan = plan
        self._checks = checks
        self._wait_timeout = wait_timeout
        self._trace = trace
        self._heartbeat = heartbeat
        self._prepare = prepare
        self._token = ""
        self._other_plan = False
        self._groups: dict[asyncio.Task[None], Claim] = {}
        self._stopping = asyncio.Event()
        self._waited: tuple[str, float, float] | None = None
        self._loop = Gathered(self._note_loop)
        self.waiting_for = "engines to start"

    def ran(self, begin: float, end: float, used: float) -> None:
        """Records that its event loop ran from ``begin`` to ``end`` (Unix seconds), with so many CPU seconds."""
        self._loop.add(begin, end, used)

    def _note_loop(self, begin: float, end: float, used: float) -> None:
        middle = min(begin + used, end)
        self._trace.span(f"{self._name} · loop", "Python", begin, middle)
        if end - middle > SHORT:
            self._trace.span(f"{self._name} · loop", "held up", middle, end)  # for the interpreter, or for a core

    def stop(self) -> None:
        """Asks the explorer to release its claims and to leave. To be called on its event loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Explores until the run is finished, has failed, or `stop` is called.

        Raises:
            RunFailedError: some process recorded why the run cannot go on.
            TimeoutError: nothing happened for ``wait_timeout`` seconds; names what was waited for.
            EngineError: no engine can be kept alive, or none can load a version.
            NothingButDrops: no attempt at anything comes to an end.
        """
        try:
            await self._explore()
        finally:
            self._record_wait()
            self._loop.flush()
            await self._ledger.close()

    async def _explore(self) -> None:
        sizes = [TasksetSize(n, len(t), self._weights.get(n, 1.0), t.fingerprint) for n, t in self._tasksets.items()]
        try:
            await self._ledger.call(self._register)
            await self._ledger.call(claims.register_tasksets, sizes, self._name)
        except (StaleWriterError, asyncio.CancelledError):
            await self._leave()
            raise
        beat = asyncio.ensure_future(self._heartbeats())
        loop_task, stop = asyncio.ensure_future(self._main_loop(beat)), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({loop_task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if loop_task.done():
                loop_task.result()
        finally:
            ours = [beat, loop_task, stop, *self._groups]
            for task in ours:
                task.cancel()
            await asyncio.gather(*ours, return_exceptions=True)
            try:
                await self._leave()  # first: engines may take their time to end
            finally:
                await self._pool.close()

    def _register(self, db: Database) -> None:
        self._token = processes.register(db, self._name, "explorer")  # even where the caller was cancelled meanwhile

    async def _leave(self) -> None:
        await self._ledger.call(processes.leave, self._name, self._token)

    async def gauges(self) -> dict[str, Any]:
        """Returns engine metrics and the number of groups in flight."""
        return {**await self._pool.gauges(), "groups_in_flight": float(len(self._groups))}

    async def _main_loop(self, beat: asyncio.Future[None]) -> None:
        if self._prepare is not None:
            self.waiting_for = "the smoke check of environments and rewards"
            await self._prepare()
        self.waiting_for = "engines to start"
        await self._pool.start()
        loop = asyncio.get_running_loop()
        last_progress, last_state = loop.time(), ("", self._pool.serving, 0.0)
        while True:
            seen = self._ledger.notifier.changes
            self._raise_failures(beat)
            missing = await self._validate_if_due()
            other, newest, room = await self._ledger.call(_look, self._name)
            loaded = self._serves(newest)
            if other is None:
                self._release()
                missing = await self._serve(newest) or missing
            else:
                await self._hold()
            # Groups claimed while their version is missing would spend their time limit waiting for it.
            limit = 0 if missing else min(CLAIM_LIMIT, self._runner.free_groups)
            if loaded and isinstance(room, ClaimResult):
                granted = room  # as of this very round: an explorer that waits makes one transaction in each
            else:
                granted = await self._ledger.call(claims.claim, self._name, list(self._tasksets), limit)
            if granted.over:
                return
            for claim in granted.claims:
                self._begin(claim)
            reason = "the validation of version {} by {}".format(*other) if other else missing or granted.reason
            self.waiting_for = reason
            tokens = await self._ledger.call(processes.tokens) if other else 0.0
            state = (reason, self._pool.serving, tokens)
            if granted.claims or (self._groups and other is None) or state != last_state:
                last_progress, last_state = loop.time(), state
            if loop.time() - last_progress > self._wait_timeout:
                raise TimeoutError(f"{named_explorer(self._name)}: waited {self._wait_timeout:g} s for: {reason}")
            if missing:
                await asyncio.sleep(LOOK_AGAIN)  # the check itself changes the ledger, and would end the wait
            elif not granted.claims:
                begin = self._ledger.clock()
                await self._ledger.notifier.wait_async(seen)
                self._note_wait(reason.partition(":")[0], begin)

    def _note_wait(self, kind: str, begin: float) -> None:
        """Records a wait for news, with those before it of the same kind as one: what lies between them is short, or a
        span of its own.
        """
        before, end = self._waited, self._ledger.clock()
        near = before is not None and begin - before[2] < HEARTBEAT and end - before[1] < GAUGES_SECONDS
        if before is not None and before[0] == kind and near:
            self._waited = kind, before[1], end
            return
        self._record_wait()
        self._waited = kind, begin, end

    def _record_wait(self) -> None:
        if self._waited is not None:
            self._trace.span(f"{self._name} · waits", *self._waited)
        self._waited = None

    async def _hold(self) -> None:
        """Holds training generation, and pauses its time limits, while any explorer validates (promise P8)."""
        self._deadlines.hold()
        await self._pool.hold()

    def _release(self) -> None:
        self._pool.release()
        self._deadlines.release()

    def _begin(self, claim: Claim) -> None:
        failpoint("claim")
        try:
            task = self._tasksets[claim.task.taskset].task(claim.task.epoch, claim.task.index)
            settling = self._runner.settle(claim, task)
        except BadRow as error:
            settling = self._runner.bad_row(claim, error)
        running = asyncio.ensure_future(settling)
        self._groups[running] = claim
        running.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._groups.pop(task, None)
        self._ledger.notifier.notify()

    def _raise_failures(self, beat: asyncio.Future[None]) -> None:
        for task in [beat, *self._groups]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _serve(self, newest: versions.Announced | None) -> str:
        """Loads the newest version, unless it is loaded; returns what is waited for if it is announced and yet gone,
        otherwise nothing.
        """
        if newest is None or self._serves(newest):
            return ""
        if (serving := self._pool.serving) and serving.lineage != newest.lineage:
            await self._cancel_reopened_groups()
        self.waiting_for = f"version {newest.version} to load"
        begin = self._ledger.clock()
        try:
            await self._load_kept(newest)
        except WeightsGoneError as error:
            # It may have been superseded and deleted while it was read; then the next round loads its successor.
            return "" if await self._superseded(newest) else _awaited_version(newest, error)
        except WeightUpdateError:
            return ""
        end = self._ledger.clock()
        self._trace.span(f"{self._name} · versions", f"load version {newest.version}", begin, end)
        await self._checks.check(self._pool, newest)
        return ""

    def _serves(self, newest: versions.Announced | None) -> bool:
        serving = self._pool.serving
        if newest is None or serving is None:
            return newest is None
        return (serving.version, serving.lineage) == (newest.version, newest.lineage)

    async def _load_kept(self, version: versions.Announced) -> None:
        """Loads a version by `_load` as long as it is the newest, and keeps its files from being deleted meanwhile."""
        await self._ledger.call(processes.begin_loading, self._name, version.version)
        loaded = None
        try:
            await self._load(version, while_newest=True)
            loaded = version.version
        finally:
            await self._ledger.call(processes.end_loading, self._name, loaded)

    async def _load(self, version: versions.Announced, *, while_newest: bool = False) -> None:
        """Loads a version into the engines, several times if need be: a disk or a network may fail for a moment.

        Raises:
            WeightsGoneError: it is not there.
            WeightUpdateError: it failed, and is no longer the newest.
            EngineError: it failed every time. That is this explorer's fault, or misfortune, and not the run's: it may
                have another model, or a disk of its own.
        """
        for left in reversed(range(LOAD_TRIES)):
            try:
                await self._pool.load(version)
                break
            except WeightsGoneError:
                raise
            except WeightUpdateError as error:
                if while_newest and await self._superseded(version):
                    raise
                message = f"version {version.version} cannot be loaded: {error}"
                log.warning("%s; %d tries left", message, left)
                self._ledger.post(processes.note, self._name, "load_failed", message)
                if not left:
                    raise EngineError(message) from error
            await asyncio.sleep(LOOK_AGAIN)

    async def _superseded(self, version: versions.Announced) -> bool:
        newest = await self._ledger.call(versions.newest)
        return newest is not None and (newest.version, newest.lineage) != (version.version, version.lineage)

    async def _cancel_reopened_groups(self) -> None:
        """Cancels the groups whose claims a restarted learner has reopened because it lost their weights."""
        held = await self._ledger.call(claims.held_by, self._name)
        for running, claim in self._groups.items():
            if claim.number not in held:
                running.cancel()

    async def _validate_if_due(self) -> str:
        """Validates what is due, and leaves generation held: another explorer may still be validating. Returns what is
        waited for if weights to validate are gone, otherwise nothing.
        """
        if not self._plan.tasksets:
            return ""  # without held-out tasks it would record nothing, and no other explorer would validate again
        while (pinned := await self._claim_validation()) is not None:
            self.waiting_for = f"the validation of version {pinned.version}"
            begin = self._ledger.clock()
            await self._hold()
            failpoint("validate")
            serving = self._pool.serving
            if serving is None or (serving.version, serving.lineage) != (pinned.version, pinned.lineage):
                try:
                    await self._load(pinned)
                except WeightsGoneError as error:
                    outcome = await self._ledger.call(validations.settle_lost_validation, self._name, pinned)
                    if not outcome:
                        return _awaited_version(pinned, error)
                    log.warning("%s", outcome)
                    continue
                await self._checks.check(self._pool, pinned)
            seed, on_failure = self._ledger.spec.seed, self._runner.note_failure
            result = await validate(self._pool, self._plan, seed=seed, on_failure=on_failure)
            end = self._ledger.clock()
            self._trace.span(f"{self._name} · versions", f"validate version {pinned.version}", begin, end)
            try:
                measured = {**result, "val/seconds": end - begin}
                await self._ledger.call(validations.finish_validation, self._name, pinned, measured)
            except StaleWriterError as error:
                log.warning("%s", error)
        return ""

    async def _claim_validation(self) -> versions.Announced | None:
        if self._other_plan:
            return None
        try:
            return await self._ledger.call(validations.claim_validation, self._name, self._plan.fingerprint)
        except validations.OtherPlanError as error:
            self._other_plan = True
            log.warning("%s", error)
            self._ledger.post(processes.note, self._name, "other_validation", str(error))
            return None

    async def _heartbeats(self) -> None:
        gauges: dict[str, Any] = {}
        while True:
            with contextlib.suppress(TimeoutError):  # a silent engine must not make the explorer look dead
                async with asyncio.timeout(GAUGES_SECONDS):
                    gauges = await self.gauges()
            version = -1 if self._pool.serving is None else self._pool.serving.version
            try:
                await self._ledger.call(processes.heartbeat, self._name, self._token, version, gauges)
            except StaleWriterError as error:
                log.warning("%s; registering again", error)
                await self._ledger.call(self._register)
            except LedgerError as error:
                log.warning("%s: heartbeat missed: %s", self._name, error)
            await asyncio.sleep(self._heartbeat)


@reads
def _look(
    tx: Transaction, explorer: str
) -> tuple[tuple[int, str] | None, versions.Announced | None, int | ClaimResult]:
    """Returns the running validation, the newest version and `allowed`, in one transaction, as every round begins with
    it.
    """
    return validating(tx), versions.newest_version(tx), allowed(tx, explorer)


def _awaited_version(version: versions.Announced, error: WeightUpdateError) -> str:
    return f"the learner to publish version {version.version} of lineage {version.lineage} again, or another: {error}"
