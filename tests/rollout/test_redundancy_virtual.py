"""Groups that begin with more members than they need."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.async_utils import first_of
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from sidecar.protocol import GenerateRequest
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import SPEC, run_simulation


def member_of(request: GenerateRequest) -> int:
    return int(request.id.split("/")[3])


def test_the_slowest_member_is_cancelled_and_the_group_is_whole(tmp_path: Path) -> None:
    """Member 1 of each group takes minutes: nobody waits for it, and it ends in no group."""
    engine = ModelledEngine(lambda request: 200.0 if member_of(request) == 1 else 1.0)
    simulation, batches, report = run_simulation(tmp_path, redundancy=1, engines=[engine], timeout=1e5, validates=False)
    assert report["balanced"]
    assert {tuple(t.member for t in g.trajectories) for b in batches for g in b.groups} == {(0, 2, 3, 4)}
    assert simulation.db.clock() < 60.0
    assert not engine._running, "what was cancelled is withdrawn from the engine"


def test_without_redundancy_it_is_waited_for(tmp_path: Path) -> None:
    slow = lambda request: 60.0 if member_of(request) == 1 else 1.0  # noqa: E731
    simulation, _, report = run_simulation(tmp_path, latency=slow, timeout=1e5, validates=False)
    assert report["balanced"]
    assert simulation.db.clock() > 60.0


def test_a_member_to_spare_may_fail_for_good(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("no")

    def misbehave(task: Task, attempt: Attempt) -> Any:
        return fail() if attempt.member == 0 else None

    _, batches, report = run_simulation(tmp_path, redundancy=1, misbehave=misbehave, validates=False)
    assert report["dropped"] == {}
    assert report["faults"]["ValueError"] > 0
    assert {tuple(t.member for t in g.trajectories) for b in batches for g in b.groups} == {(1, 2, 3, 4)}


def test_two_that_fail_are_one_too_many(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("no")

    def misbehave(task: Task, attempt: Attempt) -> Any:
        return fail() if attempt.member < 2 and task.id.index % 2 else None

    _, _, report = run_simulation(tmp_path, redundancy=1, misbehave=misbehave, validates=False)
    assert report["balanced"]
    assert report["dropped"]["ValueError"] > 0


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.sampled_from([(0.0, 0), (1.0, 1), (2.5, 4)]), st.integers(0, 2), st.integers(1, 50))
def test_redundant_members_change_no_promise(
    tmp_path_factory: Any, ahead: tuple[float, int], extra: int, salt: int
) -> None:
    """P1 and P5 with members that come in any order, and now and then very late."""
    spec = replace(SPEC, alpha=ahead[0], staleness_bound=ahead[1], max_steps=5)

    def latency(request: GenerateRequest) -> float:
        draw = (int(request.sampling.seed) * salt) % 97
        return 60.0 if draw < 3 else 1.0 + draw % 11

    capacity = 6 * (spec.group_size + extra)
    _, batches, report = run_simulation(
        tmp_path_factory.mktemp("run"),
        spec=spec,
        redundancy=extra,
        latency=latency,
        timeout=1e5,
        capacity=capacity,
        validates=False,
    )
    assert report["balanced"]
    assert report["max_staleness"] <= ahead[1]
    assert all(len(g.trajectories) == spec.group_size for b in batches for g in b.groups)


def test_what_is_not_tolerated_ends_all() -> None:
    ended = []

    async def forever(name: str) -> int:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(name)
        return 0

    async def wrong() -> int:
        await asyncio.sleep(1.0)
        raise KeyError("x")

    async def main(loop: Any) -> None:
        with pytest.raises(KeyError):
            await first_of([forever("a"), wrong(), forever("b")], 1, ValueError)

    run_virtual(main)
    assert sorted(ended) == ["a", "b"]
