"""Trajectories keep the version that they begin with, however long they take, and engines hold no more than S + 1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.ledger.run_spec import RunSpec
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.transcript import Transcript
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory
from sidecar.held import HeldVersions
from sidecar.protocol import (
    Completion,
    EngineError,
    GenerateRequest,
    PinnedVersionError,
    SamplingParams,
    UpdatePolicy,
    WeightsGoneError,
    WeightUpdate,
)
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import SPEC, run_simulation

TURNS = 3


class Holds(ModelledEngine):
    """Holds versions as the protocol says, and says of each pinned request whether it did."""

    def __init__(
        self,
        latency: Callable[[GenerateRequest], float],
        held: int,
        lives: float = 1e9,
        gone: Callable[[int], bool] = lambda _: False,
    ) -> None:
        super().__init__(latency)
        self.held = HeldVersions[int](held)
        self.refused = 0
        self._lives = lives
        self._gone = gone

    async def update_weights(self, update: WeightUpdate) -> None:
        assert update.policy is UpdatePolicy.PIN
        if self._gone(update.version):
            raise WeightsGoneError(f"version {update.version} is not there")
        self.held.add(update.version, update.lineage, update.version)
        await super().update_weights(update)

    async def generate(self, request: GenerateRequest) -> Completion:
        async with self._changed:
            await self._changed.wait_for(lambda: self._version >= request.min_version)
        version = request.min_version if request.pinned else self._version
        if version not in self.held:
            self.refused += 1
            raise PinnedVersionError.of(request, "the engine")
        if asyncio.get_running_loop().time() > self._lives:
            raise EngineError("the engine is dead")
        done = await super().generate(request)
        assert not request.pinned or version in self.held, "dropped under a request that is pinned to it"
        return replace(done, versions=np.full_like(done.versions, version))


class Talks:
    """A workflow of several turns, the last of which comes long after the first."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        self.attempts.append(attempt)
        transcript = Transcript()
        for turn in range(TURNS):
            transcript.add_text(np.array([task.id.index], np.int32))
            sampling = SamplingParams(max_new_tokens=4, seed=attempt.seed(task, turn))
            request = GenerateRequest(
                f"{task.id}/{attempt.member}/{attempt.retry}/{turn}/{attempt.validation}",
                transcript.row,
                sampling,
                min_version=attempt.min_version,
                affinity=str(task.id),
                pinned=attempt.pinned,
            )
            transcript.add_reply(await pool.generate(request, attempt.lineage, validation=attempt.validation))
        return Trajectory(
            **transcript.columns(),
            reward=float(attempt.member),
            temperature=1.0,
            finish_reason="stop",
            member=attempt.member,
            seed=attempt.seed(task, 0),
            retries=attempt.retry,
        )


def slow(request: GenerateRequest) -> float:
    """Seconds of a turn: of every seventh task many, so that versions come and go meanwhile."""
    return 4.0 if int(request.prompt_ids[0]) % 7 == 0 else 0.3


CASES: dict[str, tuple[RunSpec, frozenset[int]]] = {
    "synchronous": (replace(SPEC, alpha=0.0, staleness_bound=0), frozenset()),
    "a step off": (SPEC, frozenset()),
    "three steps off": (replace(SPEC, alpha=3.0, staleness_bound=3, max_steps=12), frozenset()),
    "a long tail": (replace(SPEC, alpha=2.0, staleness_bound=5, max_steps=12), frozenset()),
    "intervals": (replace(SPEC, alpha=1.0, sync_interval=3, staleness_bound=3, max_steps=12), frozenset()),
    "validated": (replace(SPEC, alpha=2.0, staleness_bound=2, max_steps=12), frozenset({2, 3, 7})),
}


def trained(batches: Any) -> list[tuple[int, Trajectory]]:
    return [(batch.step, t) for batch in batches for group in batch.groups for t in group.trajectories]


@pytest.mark.parametrize("case", CASES)
def test_each_trajectory_is_of_one_version_and_no_staler_than_the_bound(case: str, tmp_path: Path) -> None:
    spec, validated = CASES[case]
    engine, workflow = Holds(slow, spec.staleness_bound + 1), Talks()
    _, batches, counts = run_simulation(
        tmp_path,
        validate=validated,
        spec=spec,
        engines=[engine],
        workflow=workflow,
        policy=UpdatePolicy.PIN,
        validates=bool(validated),
    )
    rows = trained(batches)
    assert len(rows) == spec.max_steps * spec.batch_groups * spec.group_size
    for step, trajectory in rows:
        (version,) = set(trajectory.versions[trajectory.loss_mask].tolist())
        assert 0 <= step - version <= spec.staleness_bound
    assert engine.refused == 0, "S + 1 versions are as many as may be in use"
    assert {attempt.retry for attempt in workflow.attempts} == {0}
    assert counts["balanced"]
    assert all(attempt.pinned != attempt.validation for attempt in workflow.attempts)
    if spec.staleness_bound > 1 and not validated:
        assert any(step > trajectory.versions.max() for step, trajectory in rows), "some are stale"


@pytest.mark.parametrize("gone", [False, True], ids=["kept", "gone"])
def test_what_began_on_an_engine_that_died_goes_on_or_begins_anew_where_its_version_is_gone(
    gone: bool, tmp_path: Path
) -> None:
    spec = replace(SPEC, alpha=2.0, staleness_bound=2, max_steps=10)
    first, workflow = Holds(slow, 3, lives=5.0), Talks()
    second = Holds(slow, 3, gone=lambda version: gone and version < max(update.version for update in first.loads))
    _, batches, counts = run_simulation(
        tmp_path,
        spec=spec,
        engines=[first, second],
        workflow=workflow,
        policy=UpdatePolicy.PIN,
        held_versions=3,
        validates=False,
    )
    assert (second.refused > 0) == gone, "the successor has the newest alone where the others are gone"
    begun = [update.version for update in second.loads]
    assert begun == sorted(begun), "the newest is the one that serves"
    assert (begun[0] < max(update.version for update in first.loads)) != gone
    assert {attempt.retry for attempt in workflow.attempts} == {0}
    for step, trajectory in trained(batches):
        (version,) = set(trajectory.versions[trajectory.loss_mask].tolist())
        assert 0 <= step - version <= spec.staleness_bound
    assert counts["balanced"]
    assert counts["max_staleness"] <= spec.staleness_bound
    assert counts["dropped"] == {}
