"""The interface of a workflow: it makes one trajectory of one attempt at a task, from prompt, engine and reward.

A workflow is what a user writes to explore differently (docs/workflows.md): a class that is made with `tools.Tools`.
`single_turn.SingleTurn` is the one for questions with one answer, `multi_turn.MultiTurn` the one for environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from rljax.rollout.engine_pool import EnginePool
from rljax.tasks.seeds import stable_hash
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Attempt:
    """Identity of one attempt at a task, and the weights that its tokens must come from.

    Attributes:
        run_seed: the run's seed.
        member: place in the group.
        retry: attempts of this member that failed before.
        min_version: oldest weights allowed.
        pinned: no newer ones are, either: all tokens are of that version.
        lineage: oldest lineage of weights allowed.
        validation: whether it measures the policy instead of training it; such requests pass a held pool.
        group: number of the group in the run, its requests' priority: the older one is due sooner, and a turn of it
            that comes late does not wait behind the first turns of those claimed since. A validation's is 0.
    """

    run_seed: int
    member: int
    retry: int = 0
    min_version: int = 0
    lineage: int = 0
    validation: bool = False
    group: int = 0
    pinned: bool = False

    def seed(self, task: Task, turn: int) -> int:
        """Returns the sampling seed of one turn (promise P11): the same whenever and wherever the attempt is made."""
        role = "validation" if self.validation else "training"
        place = (task.id.taskset, task.id.epoch, task.id.index)
        return stable_hash(self.run_seed, role, *place, self.member, self.retry, turn)


class Workflow(Protocol):
    """Makes one trajectory. Raises to fail the attempt; the runner retries it."""

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Returns a whole, scored trajectory."""
        ...


@runtime_checkable
class JudgesGroups(Protocol):
    """Part of a workflow that its tasks need where a reward takes a whole group."""

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns the trajectories of a group with these rewards added."""
        ...


async def judged_together(workflow: Workflow, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the trajectories of a group, with the rewards added that take a whole group where the task has any.

    Raises:
        TypeError: it has, and the workflow cannot.
    """
    if not any(term.of_groups for term in task.rewards):
        return list(members)
    if not isinstance(workflow, JudgesGroups):
        raise TypeError(
            f"{type(workflow).__name__}: a reward that takes a whole group needs a workflow with judge_group"
        )
    return await workflow.judge_group(task, members)


class BrokenContract(TypeError):
    """Raised for a trajectory that no workflow may return: no other attempt would be better."""


def keeps_contract(said: str, trajectory: object, attempt: Attempt, sequence_length: int) -> Trajectory:
    """Returns what a workflow made of an attempt, where the learner can train it; ``said`` begins what is raised.

    Raises:
        BrokenContract: it is no trajectory; or a row is longer than ``sequence_length`` or begins with a trained token;
            or it is another attempt's, or sampled from other weights than this one may use; or a number is none.
    """
    if not isinstance(trajectory, Trajectory):
        raise BrokenContract(f"{said}a {type(trajectory).__name__}; return a Trajectory, which tools.trajectory makes")
    longest = max(end - start for start, end in trajectory.row_spans)
    if longest > sequence_length:
        raise BrokenContract(f"{said}a row of {longest} tokens; model.sequence_length is {sequence_length}")
    if any(trajectory.loss_mask[start:end][:1].any() for start, end in trajectory.row_spans):
        raise BrokenContract(
            f"{said}a row that begins with a trained token, which nothing before it predicts; add the text of a row "
            "before its first reply"
        )
    if (trajectory.member, trajectory.retries) != (attempt.member, attempt.retry):
        raise BrokenContract(f"{said}the trajectory of another attempt; take member and retries from attempt")
    oldest = trajectory.min_version
    if oldest is not None and oldest < attempt.min_version:
        raise BrokenContract(
            f"{said}a token of version {oldest}, and the attempt takes none before {attempt.min_version}; hand "
            "attempt.min_version to the engine, as tools.ask does"
        )
    newest = trajectory.max_version
    if attempt.pinned and newest is not None and newest > attempt.min_version:
        raise BrokenContract(
            f"{said}a token of version {newest}, and the attempt is pinned to {attempt.min_version}; hand "
            "attempt.pinned to the engine, as tools.ask does"
        )
    for name in ("reward", "turn_rewards", "logprobs"):
        numbers = np.ravel(getattr(trajectory, name))
        for number in numbers[~np.isfinite(numbers)][:1]:
            raise BrokenContract(f"{said}the {name.removesuffix('s')} {number}; return a finite number, or raise")
    return trajectory


class OwnWorkflow:
    """Holds a workflow of a user's own to the contract."""

    def __init__(self, workflow: Workflow, sequence_length: int) -> None:
        """Wraps it; ``sequence_length`` is the longest row, in tokens."""
        self._workflow = workflow
        self._sequence_length = sequence_length

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`. Raises BrokenContract, and whatever the workflow raises."""
        made = await self._workflow.run(task, attempt, pool)
        return keeps_contract(self._returned("run"), made, attempt, self._sequence_length)

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Implements `JudgesGroups`. Raises BrokenContract, and whatever the workflow raises."""
        judged: object = await judged_together(self._workflow, task, members)
        said = self._returned("judge_group")
        if not isinstance(judged, Sequence) or len(judged) != len(members):
            count = f"{len(judged)} members" if isinstance(judged, Sequence) else f"a {type(judged).__name__}"
            raise BrokenContract(f"{said}{count} for a group of {len(members)}; return each member, in their order")
        attempts = [Attempt(one.seed, one.member, one.retries, one.min_version or 0) for one in members]
        return [
            keeps_contract(said, one, attempt, self._sequence_length)
            for one, attempt in zip(judged, attempts, strict=True)
        ]

    def _returned(self, method: str) -> str:
        return f"rollout.workflow: {type(self._workflow).__name__}.{method} returned "
