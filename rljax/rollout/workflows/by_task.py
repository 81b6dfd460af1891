"""The workflow of a run whose config names none: each kind of task has its own."""

from __future__ import annotations

from collections.abc import Sequence

from rljax.config.registries import workflows
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.multi_turn import MultiTurn
from rljax.rollout.workflows.single_turn import SingleTurn
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.workflow import Attempt, Workflow, judged_together
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory


@workflows.register("by_task")
class ByTask:
    """Chooses the workflow by the kind of task: one for questions, another for environments."""

    def __init__(self, tools: Tools) -> None:
        self._questions: Workflow = SingleTurn(tools)
        self._environments: Workflow = MultiTurn(tools) if tools.environments else self._questions

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`."""
        return await self._of(task).run(task, attempt, pool)

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Implements `JudgesGroups`."""
        return await judged_together(self._of(task), task, members)

    def _of(self, task: Task) -> Workflow:
        return self._environments if task.environment else self._questions
