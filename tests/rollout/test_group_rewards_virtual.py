"""Rewards that take a whole group, under a virtual clock: what is trained, what a failure costs, validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rljax.rollout.workflows.workflow import BrokenContract, OwnWorkflow
from rljax.tasks.rewards.reward import JudgeUnavailable
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import Trajectory
from tests.rollout.simulation import SPEC, Numbers, Plain, run_simulation


class Judged(Numbers):
    """Numbers whose reward takes a whole group."""

    def task(self, epoch: int, index: int) -> Task:
        return replace(super().task(epoch, index), rewards=(RewardTerm("ranks", "ranks", of_groups=True),))


class Together(Plain):
    """Adds 10 times the sum over the group to each; fails for odd tasks, ``failures`` times each."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures
        self.sizes: dict[str, set[int]] = {}
        self.failed: dict[str, int] = {}

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        self.sizes.setdefault(task.id.taskset, set()).add(len(members))
        name = str(task.id)
        if task.id.index % 2 and self.failed.setdefault(name, 0) < self._failures:
            self.failed[name] += 1
            raise JudgeUnavailable("http://127.0.0.1:1 answers nothing")
        whole = 10 * sum(member.reward for member in members)
        return [replace(member, reward=member.reward + whole) for member in members]


def test_the_members_of_a_group_are_judged_together_again_where_that_fails(tmp_path: Path) -> None:
    flow = Together(failures=2)
    sets = {"numbers": Judged()}
    _, batches, report = run_simulation(tmp_path, workflow=flow, tasksets=sets, held=Judged("held", 4), validate={0})
    assert flow.sizes == {"numbers": {SPEC.group_size}, "held": {1}}, "validation scores a group of one"
    for batch in batches:
        for group in batch.groups:
            assert [member.reward for member in group.trajectories] == [60.0, 61.0, 62.0, 63.0]
    assert report["dropped"] == {}
    assert report["balanced"], report["problems"]


def test_a_judge_that_stays_away_drops_the_group_by_name(tmp_path: Path) -> None:
    flow = Together(failures=3)
    _, batches, report = run_simulation(tmp_path, workflow=flow, tasksets={"numbers": Judged()}, validates=False)
    assert set(report["dropped"]) == {"JudgeUnavailable"}
    assert report["balanced"], report["problems"]
    assert all(group.task.index % 2 == 0 for batch in batches for group in batch.groups)
    assert set(flow.failed.values()) == {3}, "max_retries is 2"


class Fewer(Plain):
    """Loses a member of each group that it judges."""

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        return list(members[1:])


def test_a_workflow_of_ones_own_that_loses_members_ends_the_run(tmp_path: Path) -> None:
    flow = OwnWorkflow(Fewer(), 100)
    with pytest.raises(BrokenContract, match=r"Fewer.judge_group returned 3 members for a group of 4"):
        run_simulation(tmp_path, workflow=flow, tasksets={"numbers": Judged()}, validates=False)
