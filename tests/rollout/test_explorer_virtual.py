"""The real explorer, scheduler and ledger under a virtual clock, with engines of modelled latency."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.ledger import audit, claims, leases, processes, validations, versions
from rljax.ledger.database import Database, RunFailedError, RunSpec
from rljax.observe.trace import NullTrace
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.explorer import Explorer, ValidationPlan
from rljax.rollout.groups import GroupRunner
from rljax.rollout.pool import EnginePool
from rljax.rollout.workflow import Attempt, assemble
from rljax.tasks.task import BadRow, Task
from rljax.trajectory import TaskId, Trajectory
from sidecar.protocol import EngineError, GenerateRequest, SamplingParams

spec = importlib.util.spec_from_file_location("virtual_clock", Path(__file__).parents[1] / "virtual_clock.py")
virtual_clock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(virtual_clock)
ModelledEngine, run_virtual = virtual_clock.ModelledEngine, virtual_clock.run_virtual

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
        request = GenerateRequest(name, prompt, sampling, min_version=attempt.min_version)
        completion = await pool.generate(request, attempt.lineage, validation=attempt.validation)
        return assemble(prompt, completion, attempt, sampling, float(attempt.member), {})


@dataclass
class House:
    """A run without a model: explorer, engine, and a learner that trains in modelled time."""

    db: Database
    explorer: Explorer
    engine: Any
    pool: EnginePool


def build(
    tmp_path: Path,
    loop: asyncio.AbstractEventLoop,
    *,
    spec: RunSpec = SPEC,
    latency: Callable[[GenerateRequest], float] = lambda _: 1.0,
    misbehave: Callable[[Task, Attempt], Any] | None = None,
    tasksets: dict[str, Numbers] | None = None,
    engines: list[Any] | None = None,
    fail_on_bad_row: bool = False,
    timeout: float = 50.0,
    filters: list[Any] | None = None,
    wait_timeout: float = 1e5,
) -> House:
    db = Database(tmp_path / "ledger.db", spec, clock=loop.time)
    engines = engines or [ModelledEngine(latency)]
    queue = iter(engines)

    async def start(_: int) -> Any:
        return next(queue)

    pool = EnginePool(start, 1, tmp_path, lambda kind, message: processes.note(db, "explorer", kind, message))
    deadlines = PausableDeadlines()
    workflow = Plain(misbehave)
    runner = GroupRunner(
        db,
        "explorer",
        workflow,
        pool,
        deadlines,
        group_size=spec.group_size,
        max_retries=2,
        trajectory_timeout=timeout,
        filters=filters or [],
        fail_on_bad_row=fail_on_bad_row,
        trace=NullTrace(),
    )
    tasksets = tasksets or {"numbers": Numbers()}
    plan = ValidationPlan(workflow, {"held": Numbers("held", 8)}, None, 1e4)
    weights = dict.fromkeys(tasksets, 1.0)
    explorer = Explorer(
        db,
        "explorer",
        pool,
        runner,
        deadlines,
        tasksets,
        weights,
        plan,
        None,
        wait_timeout=wait_timeout,
        trace=NullTrace(),
    )
    return House(db, explorer, engines[0], pool)


async def learn(db: Database, seconds: float, validate: frozenset[int] = frozenset()) -> list[leases.Leased]:
    """Trains to the end in modelled time; returns the batches."""
    lineage = leases.begin_lineage(db, 0)
    versions.announce(db, lineage, 0, "weights/v0", validate=0 in validate)
    batches: list[leases.Leased] = []
    while len(batches) < db.spec.max_steps:
        seen = db.notifier.changes
        found = leases.lease(db, lineage)
        if isinstance(found, leases.NotYet):
            if found.over:
                break
            await db.notifier.wait_async(seen)
            continue
        await asyncio.sleep(seconds)
        leases.mark_trained(db, lineage, found.step, publishes=(found.step + 1) % db.spec.sync_interval == 0)
        batches.append(found)
        if (found.step + 1) % db.spec.sync_interval == 0:
            versions.announce(
                db, lineage, found.step + 1, f"weights/v{found.step + 1}", validate=found.step + 1 in validate
            )
    while validations.unfinished(db):
        await db.notifier.wait_async(db.notifier.changes)
    leases.finish(db, lineage)
    return batches


def run_house(tmp_path: Path, seconds: float = 1.0, validate: frozenset[int] = frozenset(), **options: Any) -> Any:
    """Runs explorer and learner to the end; returns (house, batches, audit)."""

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        house = build(tmp_path, loop, **options)
        exploring = asyncio.ensure_future(house.explorer.run())
        learning = asyncio.ensure_future(learn(house.db, seconds, validate))
        await asyncio.wait({exploring, learning}, return_when=asyncio.FIRST_EXCEPTION)
        for task in (exploring, learning):
            if task.done() and task.exception() is not None:
                learning.cancel()
                raise task.exception()
        return house, learning.result(), audit.audit(house.db)

    return run_virtual(main)


@pytest.mark.parametrize(("alpha", "staleness"), [(0.0, 0), (0.5, 1), (1.0, 1), (2.5, 3), (7.0, 7)])
def test_run_ends_balanced_and_within_its_bound(tmp_path: Path, alpha: float, staleness: int) -> None:
    spec = replace(SPEC, alpha=alpha, staleness_bound=staleness, max_steps=12)
    slow = lambda request: 1.0 + 9.0 * (hash(request.id) % 7 == 0)  # noqa: E731
    _, batches, report = run_house(tmp_path, spec=spec, latency=slow)
    assert [b.step for b in batches] == list(range(12))
    assert report["balanced"], report["problems"]
    assert report["trained"] == 24
    assert report["max_staleness"] <= staleness


def test_synchronous_run_is_reproducible(tmp_path: Path) -> None:
    """P11: at α=0 tasks, seeds and batches do not depend on who was fast."""
    spec = replace(SPEC, alpha=0.0, staleness_bound=0)

    def batches(name: str, salt: int) -> list[Any]:
        (tmp_path / name).mkdir()
        _, found, _ = run_house(
            tmp_path / name,
            spec=spec,
            latency=lambda r: 1.0 + (int(r.sampling.seed) * salt) % 13,
            validate=frozenset({0, 3}),
        )
        return [[(str(g.task), [t.seed for t in g.trajectories]) for g in b.groups] for b in found]

    assert batches("one", 1) == batches("two", 5)


def test_seeds_ignore_crashes_and_differ_by_retry_and_member() -> None:
    """P11: a crash or an expired claim is no retry."""
    task = Numbers().task(0, 3)
    first = Attempt(7, member=1, retry=0, min_version=0, lineage=1)
    again = Attempt(7, member=1, retry=0, min_version=5, lineage=2)
    assert first.seed(task, 0) == again.seed(task, 0)
    others = {replace(first, member=2).seed(task, 0), replace(first, retry=1).seed(task, 0), first.seed(task, 1)}
    assert len(others | {first.seed(task, 0)}) == 4


def test_failing_member_is_retried_then_its_group_is_dropped_with_the_reason(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("one over nothing")

    def misbehave(task: Task, attempt: Attempt) -> Any:
        once = task.id.index == 2 and attempt.member == 1 and attempt.retry == 0
        always = task.id.index == 5 and attempt.member == 0
        return fail() if once or always else None

    _, _, report = run_house(tmp_path, misbehave=misbehave)
    assert report["balanced"], report["problems"]
    assert report["dropped"] == {"ZeroDivisionError": 1}
    assert report["trained"] == 12
    assert report["faults"]["ZeroDivisionError"] == 1 + 3


def test_hanging_member_costs_its_own_group_alone(tmp_path: Path) -> None:
    def misbehave(task: Task, attempt: Attempt) -> Any:
        return asyncio.sleep(1e9) if task.id.index == 3 and attempt.member == 2 else None

    _, _, report = run_house(tmp_path, misbehave=misbehave, timeout=20.0)
    assert report["balanced"], report["problems"]
    assert report["dropped"] == {"timeout": 1}
    assert report["trained"] == 12


def test_filtered_group_is_replaced_and_counted(tmp_path: Path) -> None:
    def third(group: Any) -> str | None:
        return "every third" if group.task.index % 3 == 0 else None

    _, batches, report = run_house(tmp_path, filters=[("thirds", third)])
    assert report["balanced"], report["problems"]
    assert set(report["filtered"]) == {"thirds: every third"}
    assert all(g.task.index % 3 for b in batches for g in b.groups)


def test_bad_row_is_dropped_or_fails_the_run_as_configured(tmp_path: Path) -> None:
    tasksets = {"numbers": Numbers(bad=frozenset({4}))}
    (tmp_path / "skip").mkdir()
    _, _, report = run_house(tmp_path / "skip", tasksets=tasksets)
    assert report["balanced"], report["problems"]
    assert report["dropped"] == {"bad_row": 1}
    (tmp_path / "fail").mkdir()
    with pytest.raises(RunFailedError, match=r"numbers.jsonl:5: not a number; .*on_bad_row=skip"):
        run_house(tmp_path / "fail", tasksets=tasksets, fail_on_bad_row=True)


def test_validation_holds_training_pins_one_version_and_loses_no_token(tmp_path: Path) -> None:
    """P8: while version 2 is measured nothing is loaded and nothing is trained on; afterwards all goes on."""
    seen: list[tuple[float, str, int]] = []

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        house = build(
            tmp_path,
            loop,
            spec=replace(SPEC, alpha=3.0, staleness_bound=4),
            latency=lambda r: 3.0 + int(r.sampling.seed) % 9,
        )
        engine = house.engine
        generate, load = engine.generate, engine.update_weights

        async def watched(request: GenerateRequest) -> Any:
            kind = "val" if "True" in request.id else "train"
            seen.append((loop.time(), f"{kind} starts", engine._version))
            done = await generate(request)
            seen.append((loop.time(), f"{kind} {done.finish_reason}", len(done.token_ids)))
            if kind == "val":
                assert set(done.versions) == {2}
            return done

        async def loaded(update: Any) -> None:
            seen.append((loop.time(), "load", update.version))
            await load(update)

        engine.generate, engine.update_weights = watched, loaded
        exploring = asyncio.ensure_future(house.explorer.run())
        batches = await learn(house.db, 1.0, frozenset({2}))
        await exploring
        return batches, audit.audit(house.db), validations.results(house.db)

    batches, report, results = run_virtual(main)
    begin = min(at for at, what, _ in seen if what == "val starts")
    end = max(at for at, what, _ in seen if what == "val length")
    assert end > begin
    during = {what for at, what, _ in seen if begin < at < end}
    assert during <= {"val starts", "val length"}, during
    assert any(what == "train abort" and kept > 0 for _, what, kept in seen)
    assert report["balanced"], report["problems"]
    assert [version for version, _ in results] == [2]
    assert results[0][1]["val/held/tasks"] == 8
    resumed = [t for b in batches for g in b.groups for t in g.trajectories]
    assert all(t.loss_mask.sum() == 4 for t in resumed)


def test_dying_engine_is_replaced_and_its_requests_move(tmp_path: Path) -> None:
    class Mortal(ModelledEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            if len(self.served) >= 5:
                raise EngineError("killed by the test")
            return await super().generate(request)

    engines = [Mortal(lambda _: 1.0), ModelledEngine(lambda _: 1.0)]
    _, _, report = run_house(tmp_path, engines=engines)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 12
    assert report["faults"]["engine_died"] == 1


def test_explorer_without_trainer_fills_its_credit_and_says_what_it_waits_for(tmp_path: Path) -> None:
    """P12: the wait has a deadline, and names what was waited for."""

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        house = build(tmp_path, loop, wait_timeout=20.0)
        versions.announce(house.db, 0, 0, "weights/v0")
        with pytest.raises(TimeoutError, match=r"waited 20 s for: credit: 4 of 4 groups"):
            await house.explorer.run()
        assert claims.states(house.db) == {"ready": 4}
        assert loop.time() > 20.0

    run_virtual(main)


def test_stopped_explorer_hands_its_claims_back(tmp_path: Path) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        house = build(tmp_path, loop, latency=lambda _: 1e6, timeout=1e9)
        versions.announce(house.db, 0, 0, "weights/v0")
        exploring = asyncio.ensure_future(house.explorer.run())
        await asyncio.sleep(10.0)
        assert claims.states(house.db) == {"claimed": 4}
        house.explorer.stop()
        await exploring
        assert claims.states(house.db) == {"open": 4}

    run_virtual(main)


def test_thousands_of_trajectories_run_on_one_thread(tmp_path: Path) -> None:
    spec = replace(SPEC, group_size=8, batch_groups=64, alpha=7.0, staleness_bound=7, max_steps=10)
    _, batches, report = run_house(tmp_path, spec=spec, latency=lambda r: 5.0 + int(r.sampling.seed) % 50)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 640
    assert all(len(b.groups) == 64 for b in batches)
