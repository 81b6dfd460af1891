"""A run without a model: real explorer, scheduler and ledger under a virtual clock, engines of modelled latency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rljax.ledger import audit, leases
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.observe.trace import NullTrace
from rljax.pipeline.simulate import learner
from rljax.pipeline.simulate.clock import InlineExecutor, run_virtual
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.explorer import Explorer
from rljax.rollout.group_runner import GroupRunner
from rljax.rollout.parity import EngineChecks, Probe
from rljax.rollout.validation import ValidationPlan
from rljax.rollout.workflows.single_turn import assemble
from rljax.rollout.workflows.workflow import Attempt, Workflow
from rljax.tasks.task import BadRow, Task, Taskset
from rljax.trajectory import TaskId, Trajectory
from sidecar.protocol import GenerateRequest, SamplingParams, UpdatePolicy
from tests.modelled_engine import ModelledEngine

SPEC = RunSpec(
    seed=7,
    group_size=4,
    batch_groups=2,
    alpha=1.0,
    staleness_bound=1,
    sync_interval=1,
    max_steps=6,
    total_epochs=None,
    claim_timeout=60.0,
)


class Numbers:
    """A taskset of numbers."""

    weight, bad_rows = 1.0, 0

    def __init__(self, name: str = "numbers", size: int = 1000, bad: frozenset[int] = frozenset()) -> None:
        self.name, self._size, self._bad = name, size, bad
        self.fingerprint = f"{name} to {size}"

    def __len__(self) -> int:
        return self._size

    def task(self, epoch: int, index: int) -> Task:
        if index in self._bad:
            raise BadRow(f"numbers.jsonl:{index + 1}: not a number")
        return Task(TaskId(self.name, epoch, index), ({"role": "user", "content": str(index)},), str(index))


class Plain:
    """A workflow whose reward is the member's number, unless told to misbehave."""

    def __init__(self, misbehave: Callable[[Task, Attempt], Any] | None = None) -> None:
        self._misbehave = misbehave

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        if self._misbehave is not None and (action := self._misbehave(task, attempt)) is not None:
            await action
        sampling = SamplingParams(max_new_tokens=4, seed=attempt.seed(task, 0))
        prompt = np.array([task.id.index], np.int32)
        name = f"{task.id}/{attempt.member}/{attempt.retry}/{attempt.validation}"
        request = GenerateRequest(name, prompt, sampling, min_version=attempt.min_version, affinity=str(task.id))
        completion = await pool.generate(request, attempt.lineage, validation=attempt.validation)
        return assemble(prompt, completion, attempt, sampling, float(attempt.member), {})


@dataclass
class Simulation:
    """A run without a model: explorer, engine, and a learner that trains in modelled time."""

    db: Database
    explorer: Explorer
    engine: Any
    pool: EnginePool
    checks: EngineChecks


def build(
    tmp_path: Path,
    loop: asyncio.AbstractEventLoop,
    *,
    name: str = "explorer",
    db: Database | None = None,
    ledger: AsyncDatabase | None = None,
    held: Taskset | None = None,
    validates: bool = True,
    plan_fingerprint: str | None = None,
    call_timeout: float = 30.0,
    spec: RunSpec = SPEC,
    latency: Callable[[GenerateRequest], float] = lambda _: 1.0,
    misbehave: Callable[[Task, Attempt], Any] | None = None,
    tasksets: Mapping[str, Taskset] | None = None,
    workflow: Workflow | None = None,
    engines: list[Any] | None = None,
    fail_on_bad_row: bool = False,
    timeout: float = 50.0,
    filters: list[Any] | None = None,
    wait_timeout: float = 1e5,
    capacity: int = 10**6,
    redundancy: int = 0,
    prepare: Callable[[], Awaitable[None]] | None = None,
    probe: Probe | None = None,
    policy: UpdatePolicy = UpdatePolicy.IN_FLIGHT,
    held_versions: int = 0,
    trace: Any = None,
) -> Simulation:
    db = db or Database(SqliteFile(tmp_path / "ledger.db"), spec, clock=loop.time)
    engines = engines or [ModelledEngine(latency)]
    queue = iter(engines)

    async def start(_: int) -> Any:
        return next(queue)

    ledger = ledger or AsyncDatabase(db, InlineExecutor())
    checks = EngineChecks(ledger, name, probe)
    pool = EnginePool(start, 1, tmp_path, checks, call_timeout=call_timeout, policy=policy, held=held_versions)
    deadlines = PausableDeadlines()
    workflow = workflow or Plain(misbehave)
    tasksets = tasksets or {"numbers": Numbers()}
    runner = GroupRunner(
        ledger,
        name,
        workflow,
        pool,
        deadlines,
        group_size=spec.group_size,
        redundancy=redundancy,
        capacity=capacity,
        max_retries=2,
        trajectory_timeout=timeout,
        filters=filters or [],
        bad_rows_in_a_row=0 if fail_on_bad_row else sum(map(len, tasksets.values())),
        trace=NullTrace(),
    )
    plan = ValidationPlan(
        workflow, {"held": held or Numbers("held", 8)} if validates else {}, None, 1, 1e4, plan_fingerprint
    )
    weights = dict.fromkeys(tasksets, 1.0)
    explorer = Explorer(
        ledger,
        name,
        pool,
        runner,
        deadlines,
        tasksets,
        weights,
        plan,
        checks,
        wait_timeout=wait_timeout,
        trace=trace or NullTrace(),
        prepare=prepare,
    )
    return Simulation(db, explorer, engines[0], pool, checks)


async def learn(
    db: Database, seconds: float, validate: frozenset[int] = frozenset(), publishing: float = 0.0
) -> list[leases.LeasedBatch]:
    """Trains to the end in modelled time, ``seconds`` a step, ``publishing`` more for a version; gives the batches."""
    return [step.batch for step in await learner.learn(db, lambda _: seconds, publishing, validate)]


def run_simulation(
    tmp_path: Path,
    seconds: float = 1.0,
    validate: frozenset[int] = frozenset(),
    publishing: float = 0.0,
    **options: Any,
) -> Any:
    """Runs explorer and learner to the end; returns (simulation, batches, audit)."""

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        simulation = build(tmp_path, loop, **options)
        exploring = asyncio.ensure_future(simulation.explorer.run())
        learning = asyncio.ensure_future(learn(simulation.db, seconds, validate, publishing))
        await asyncio.wait({exploring, learning}, return_when=asyncio.FIRST_EXCEPTION)
        for task in (exploring, learning):
            if task.done() and task.exception() is not None:
                learning.cancel()
                raise task.exception()
        return simulation, learning.result(), audit.audit(simulation.db)

    return run_virtual(main)
