"""A run without a model: the real explorer, scheduler and ledger on a virtual clock, with an engine, a learner and an
environment of which only the times are known.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from rljax.ledger import audit, claims
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.ledger.leases import LeasedBatch
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.observe.trace import NullTrace
from rljax.pipeline.simulate.clock import InlineExecutor, VirtualLoop, run_virtual
from rljax.pipeline.simulate.engine import Pace, Rate, SimulatedEngine, even
from rljax.pipeline.simulate.learner import TrainedStep, learn
from rljax.pipeline.simulate.workload import Attempts, NoContent, Thread
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.explorer import HEARTBEAT, Explorer
from rljax.rollout.group_runner import GroupRunner
from rljax.rollout.parity import EngineChecks
from rljax.rollout.validation import ValidationPlan
from rljax.rollout.workflows.workflow import Workflow
from rljax.tasks.task import Taskset
from rljax.trajectory import Group

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

LOOK_SECONDS = 600.0
"""Virtual seconds between heartbeats, and between looks for what other processes wrote: there are none."""
LONGEST = 1e9
"""Virtual seconds that nothing takes: no limit of time ends an attempt or a wait."""


@dataclass(frozen=True)
class Schedule:
    """The parts of a simulated run; all times are in seconds.

    Attributes:
        spec: the settings of its ledger.
        attempts: of training and, greedy or not, of validation.
        rate: of one engine, in tokens a second by the number of requests that it runs.
        pace: share of that by version.
        train_seconds: to train a batch.
        engines, slots: number of engines, and the requests that each runs at once.
        capacity: attempts that the explorer has under way at most.
        redundancy: members that a group begins with beyond its size.
        read_seconds: that an engine reads a version beside its sampling.
        load_seconds: that it stands still then to load it.
        prompt_cost: tokens that a request could sample in the time of its prompt.
        publish_seconds: that the learner takes for a version.
        announce_seconds: until it is announced after that, beside the next step.
        between_seconds: of the learner in each step for what is neither.
        ledger_seconds: of the explorer's ledger for a group: half of them to claim it.
        filtered: share of the groups that filters reject.
        stop_after: steps after which it is stopped, as if it went on; None: at ``max_steps``, before which explorers
            have no more to do than is still trained.
        held_out: tasks of a validation.
        validate: versions that are validated.
        make_engine: makes the engine of a number where they are not all alike; None: each of ``rate``, ``slots``,
            ``load_seconds``, ``pace``, ``prompt_cost`` and ``read_seconds``.
    """

    spec: RunSpec
    attempts: Attempts
    rate: Rate
    train_seconds: Callable[[LeasedBatch], float]
    engines: int = 1
    slots: int = 10**6
    capacity: int = 10**6
    redundancy: int = 0
    load_seconds: float = 0.0
    read_seconds: float = 0.0
    prompt_cost: float = 0.0
    publish_seconds: float = 0.0
    announce_seconds: float = 0.0
    between_seconds: float = 0.0
    ledger_seconds: float = 0.0
    pace: Pace = even
    filtered: float = 0.0
    stop_after: int | None = None
    held_out: int = 0
    validate: frozenset[int] = frozenset()
    make_engine: Callable[[int], SimulatedEngine] | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a simulated run.

    Attributes:
        steps: each as it went.
        busy_seconds: in which engines computed, on average over the engines, until the end of each step.
        audit: of its ledger.
    """

    steps: Sequence[TrainedStep]
    busy_seconds: Sequence[float]
    audit: Mapping[str, Any]


def simulate(schedule: Schedule) -> Outcome:
    """Runs it to its end.

    Raises:
        RuntimeError: the ledger does not balance, a group was trained twice, or a token is too stale.
    """
    with tempfile.TemporaryDirectory(prefix="rljax-simulated-") as directory:
        found = run_virtual(lambda loop: _run(schedule, loop, Path(directory)))
    balance = found.audit
    if not balance["balanced"] or balance["trained_twice"] or balance["max_staleness"] > schedule.spec.staleness_bound:
        raise RuntimeError(f"a simulated run broke a promise of the ledger: {balance}")
    return found


async def _run(schedule: Schedule, loop: VirtualLoop, directory: Path) -> Outcome:
    spec = replace(schedule.spec, claim_timeout=LONGEST)
    db = Database(SqliteFile(directory / "ledger.db"), spec, clock=loop.time, poll=LOOK_SECONDS)
    engines = [_engine(schedule, index) for index in range(schedule.engines)]

    async def start(index: int) -> SimulatedEngine:
        return engines[index]

    pool = EnginePool(start, schedule.engines, directory, FaultLog(), call_timeout=LONGEST)
    explorer = explorer_of(
        _TimedLedger(db, schedule.ledger_seconds),
        pool,
        replace(schedule.attempts, explorer=Thread()),
        group_size=spec.group_size,
        capacity=schedule.capacity,
        redundancy=schedule.redundancy,
        filters=[("simulated", _Filter(schedule.filtered))] if schedule.filtered else [],
        held_out={"held_out": NoContent("held_out", schedule.held_out)} if schedule.held_out else {},
        heartbeat=LOOK_SECONDS,
    )
    busy: list[float] = []

    def count_busy(_: TrainedStep) -> None:
        busy.append(sum(engine.busy_seconds for engine in engines) / len(engines))

    exploring = asyncio.ensure_future(explorer.run())
    learning = asyncio.ensure_future(
        learn(
            db,
            schedule.train_seconds,
            schedule.publish_seconds,
            schedule.validate,
            schedule.between_seconds,
            count_busy,
            schedule.stop_after,
            schedule.announce_seconds,
        )
    )
    learning.add_done_callback(lambda _: explorer.stop() if schedule.stop_after else None)
    try:
        await asyncio.gather(exploring, learning)
    finally:
        for task in (exploring, learning):
            task.cancel()
        await asyncio.gather(exploring, learning, return_exceptions=True)
        found = audit.audit(db)
        db.close()
    return Outcome(learning.result(), busy, found)


def _engine(schedule: Schedule, index: int) -> SimulatedEngine:
    if schedule.make_engine is not None:
        return schedule.make_engine(index)
    return SimulatedEngine(
        schedule.rate,
        schedule.slots,
        schedule.load_seconds,
        schedule.pace,
        schedule.prompt_cost,
        schedule.read_seconds,
    )


class _TimedLedger(AsyncDatabase):
    """The ledger's calls, made at once: but to claim and to end a group each takes half of ``seconds``, one after the
    other. So many as in the run that was measured are stored together: its seconds are a group's share of that.
    """

    def __init__(self, db: Database, seconds: float) -> None:
        super().__init__(db, InlineExecutor())
        self._half = seconds / 2
        self._thread = Thread()

    async def call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Implements `AsyncDatabase.call`."""
        called: Callable[..., object] = function
        if called is claims.settle:
            await self._thread.work(self._half)
        made = await super().call(function, *args, **kwargs)
        if isinstance(made, claims.ClaimResult):
            await self._thread.work(self._half * len(made.claims))
        return made

    async def call_together(
        self, function: Callable[[Database, Sequence[A]], Sequence[T | Exception]], argument: A
    ) -> T:
        """Implements `AsyncDatabase.call_together`, which stores groups."""
        await self._thread.work(self._half)
        return await super().call_together(function, argument)


@dataclass
class _Filter:
    """Rejects this share of the groups, evenly. Implements a filter of `rljax.algorithms`."""

    share: float
    owed: float = field(default=0.5)

    def __call__(self, group: Group) -> str | None:
        self.owed += self.share
        if self.owed < 1.0:
            return None
        self.owed -= 1.0
        return "rejected"


def explorer_of(
    ledger: AsyncDatabase,
    pool: EnginePool,
    workflow: Workflow,
    *,
    group_size: int,
    capacity: int,
    name: str = "explorer",
    redundancy: int = 0,
    filters: Sequence[tuple[str, Callable[[Group], str | None]]] = (),
    tasksets: Mapping[str, Taskset] | None = None,
    held_out: Mapping[str, Taskset] | None = None,
    heartbeat: float = HEARTBEAT,
) -> Explorer:
    """Makes an explorer as `rljax.pipeline.explore` does, for a workflow that needs no model; without ``tasksets``, for
    tasks without content. No time limit ends anything.
    """
    deadlines, tasksets = PausableDeadlines(), tasksets or {"tasks": NoContent("tasks")}
    runner = GroupRunner(
        ledger,
        name,
        workflow,
        pool,
        deadlines,
        group_size=group_size,
        redundancy=redundancy,
        capacity=capacity,
        max_retries=0,
        trajectory_timeout=LONGEST,
        filters=filters,
        bad_rows_in_a_row=0,
        trace=NullTrace(),
    )
    return Explorer(
        ledger,
        name,
        pool,
        runner,
        deadlines,
        tasksets,
        dict.fromkeys(tasksets, 1.0),
        ValidationPlan(workflow, held_out or {}, None, 1, LONGEST),
        EngineChecks(ledger, name, None),
        wait_timeout=LONGEST,
        trace=NullTrace(),
        heartbeat=heartbeat,
    )
