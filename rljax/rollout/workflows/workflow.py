"""The interface of a workflow: it makes one trajectory of one attempt at a task, from prompt, engine and reward.

A workflow is what a user writes to explore differently; `single_turn.SingleTurn` is the one for questions with one
answer, `multi_turn.MultiTurn` the one for environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


class DispatchByTask:
    """Chooses the workflow by the kind of task: one for questions, another for environments."""

    def __init__(self, questions: Workflow, environments: Workflow) -> None:
        self._questions = questions
        self._environments = environments

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`."""
        return await (self._environments if task.environment else self._questions).run(task, attempt, pool)

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Implements `JudgesGroups`."""
        return await judged_together(self._environments if task.environment else self._questions, task, members)
