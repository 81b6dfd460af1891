"""More explorers are faster, and no explorer keeps more to itself than its engines can run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.ledger import audit, claims, leases, validations, versions
from rljax.ledger.compatibility import record_validation_plan
from rljax.ledger.database import Database
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.simulate.clock import run_virtual
from tests.rollout.simulation import SPEC, Numbers, build, learn

AT_ONCE = 16
"""Requests that each explorer's engine runs at once: four groups."""
MANY = replace(SPEC, batch_groups=16, alpha=1.0, staleness_bound=1, max_steps=6)


def seconds_of_a_run(directory: Path, explorers: int) -> float:
    """virtual seconds that a run of 96 groups takes; each engine makes 16 trajectories in 1 to 7 seconds."""
    directory.mkdir()

    async def main(loop: asyncio.AbstractEventLoop) -> float:
        db = Database(SqliteFile(directory / "ledger.db"), MANY, clock=loop.time)
        slow = lambda request: 1.0 + request.sampling.seed % 7  # noqa: E731
        simulations = [
            build(directory, loop, name=f"explorer {i}", db=db, spec=MANY, latency=slow, capacity=AT_ONCE)
            for i in range(explorers)
        ]
        exploring = [asyncio.ensure_future(simulation.explorer.run()) for simulation in simulations]
        await learn(db, 0.0)
        took = loop.time()
        await asyncio.gather(*exploring)
        report = audit.audit(db)
        assert report["balanced"], report["problems"]
        assert report["trained"] == 96
        return took

    return run_virtual(main)


@pytest.mark.slow
def test_groups_per_second_rise_with_the_explorers(tmp_path: Path) -> None:
    one, two, four = (seconds_of_a_run(tmp_path / str(n), n) for n in (1, 2, 4))
    assert one / two > 1.7
    assert one / four > 2.8


def test_who_joins_later_finds_work(tmp_path: Path) -> None:
    """The credit is 32 groups, and the first explorer has engines for four: the others must be free for the second."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        first = build(tmp_path, loop, name="first", spec=MANY, latency=lambda _: 1e5, timeout=1e9, capacity=AT_ONCE)
        second = build(tmp_path, loop, name="second", db=first.db, spec=MANY, latency=lambda _: 1.0, capacity=AT_ONCE)
        versions.announce(first.db, 0, 0, "weights/v0")
        exploring = [asyncio.ensure_future(first.explorer.run())]
        await asyncio.sleep(10.0)
        assert claims.states(first.db) == {"claimed": 4}
        assert "as much to do as they can run at once" in first.explorer.waiting_for
        exploring.append(asyncio.ensure_future(second.explorer.run()))
        await asyncio.sleep(30.0)
        assert claims.states(first.db) == {"claimed": 4, "ready": 28}
        first.explorer.stop()
        await asyncio.sleep(10.0)
        assert claims.states(first.db) == {"ready": 32}, "the second has what the first handed back"
        second.explorer.stop()
        await asyncio.gather(*exploring)

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [6, 16])
def test_no_more_attempts_are_under_way_than_there_is_room_for(tmp_path: Path, capacity: int) -> None:
    most = 0

    def latency(request: Any) -> float:
        nonlocal most
        most = max(most, len(simulation.engine._running))
        return 1.0 + request.sampling.seed % 5

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal simulation
        simulation = build(tmp_path, loop, spec=MANY, latency=latency, capacity=capacity)
        exploring = asyncio.ensure_future(simulation.explorer.run())
        await learn(simulation.db, 1.0)
        await exploring
        assert audit.audit(simulation.db)["trained"] == 96

    simulation: Any = None
    run_virtual(main)
    # a group that is begun is begun as a whole
    assert capacity <= most <= capacity + MANY.group_size - 1


def test_an_explorer_may_bring_tasks_of_its_own(tmp_path: Path) -> None:
    """P4: both sets are trained, no task twice, and the one that the trainer has never heard of is in the audit."""

    async def main(loop: asyncio.AbstractEventLoop) -> tuple[dict[str, Any], list[leases.LeasedBatch]]:
        simulation = build(tmp_path, loop, name="explorer", spec=MANY, capacity=AT_ONCE)
        own = {"own": Numbers("own", 50)}
        guest = build(tmp_path, loop, name="guest", db=simulation.db, spec=MANY, tasksets=own, capacity=AT_ONCE)
        exploring = [asyncio.ensure_future(h.explorer.run()) for h in (simulation, guest)]
        batches = await learn(simulation.db, 1.0)
        await asyncio.gather(*exploring)
        return audit.audit(simulation.db), batches

    report, batches = run_virtual(main)
    assert report["balanced"], report["problems"]
    tasks = [str(group.task) for batch in batches for group in batch.groups]
    assert len(set(tasks)) == len(tasks) == 96
    assert {name: found["trained"] for name, found in report["tasksets"].items()} == {
        name: sum(task.startswith(f"{name}/") for task in tasks) for name in ("numbers", "own")
    }
    assert report["tasksets"]["own"]["trained"] > 25
    assert {"numbers", "own"} == set(report["tasksets"])
    assert set(report["explorers"]) == {"explorer", "guest"}


def test_an_explorer_without_held_out_tasks_leaves_validation_to_others(tmp_path: Path) -> None:
    """It would report that nothing was measured, and nobody would measure it again."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        guest = build(tmp_path, loop, name="guest", validates=False)
        exploring = [asyncio.ensure_future(guest.explorer.run())]
        learning = asyncio.ensure_future(learn(guest.db, 1.0, frozenset({0, 3})))
        await asyncio.sleep(20.0)
        assert guest.explorer.waiting_for == "the validation of version 0, which comes first"
        host = build(tmp_path, loop, name="host", db=guest.db)
        exploring.append(asyncio.ensure_future(host.explorer.run()))
        await learning
        await asyncio.gather(*exploring)
        assert [set(result) >= {"val/held/score"} for _, result in validations.results(guest.db)] == [True, True]

    run_virtual(main)


def test_an_explorer_that_would_validate_something_else_leaves_it_to_others(tmp_path: Path) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        guest = build(tmp_path, loop, name="guest", held=Numbers("held", 3), plan_fingerprint="another")
        record_validation_plan(guest.db, "the trainer's")
        exploring = [asyncio.ensure_future(guest.explorer.run())]
        learning = asyncio.ensure_future(learn(guest.db, 1.0, frozenset({0, 3})))
        await asyncio.sleep(20.0)
        assert guest.explorer.waiting_for == "the validation of version 0, which comes first"
        host = build(tmp_path, loop, name="host", db=guest.db, plan_fingerprint="the trainer's")
        exploring.append(asyncio.ensure_future(host.explorer.run()))
        await learning
        await asyncio.gather(*exploring)
        assert [result["val/held/tasks"] for _, result in validations.results(guest.db)] == [8.0, 8.0]
        assert audit.audit(guest.db)["faults"] == {"other_validation": 1}, "said once"

    run_virtual(main)
