"""Validation: measures one pinned version on the held-out tasks (promise P8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljax.rollout.async_utils import all_or_none
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.episode_metrics import episode_sums
from rljax.rollout.workflows.workflow import Attempt, BrokenContract, Workflow, judged_together
from rljax.tasks.environments import EnvironmentTaskset
from rljax.tasks.task import BadRow, Taskset
from rljax.trajectory import Trajectory
from sidecar.protocol import EngineError

MAX_IN_FLIGHT = 512
"""Validation attempts at once."""


@dataclass(frozen=True)
class ValidationPlan:
    """Tasks and settings of a validation.

    Attributes:
        workflow: makes the trajectories, with validation's own sampling.
        tasksets: the held-out tasksets, by name.
        batch_size: tasks of each taskset; None for all.
        group_size: attempts at each environment task, with seeds of their own; at others one.
        attempt_seconds: limit of one attempt; one that fails or exceeds it scores 0 and is counted.
        fingerprint: identifies the plan; None where it is not compared.
    """

    workflow: Workflow
    tasksets: Mapping[str, Taskset]
    batch_size: int | None
    group_size: int
    attempt_seconds: float
    fingerprint: str | None = None

    def places(self) -> dict[str, list[tuple[int, int]]]:
        """Returns the (task index, member) of each attempt, by taskset."""
        places = {}
        for name, taskset in self.tasksets.items():
            count = min(len(taskset), self.batch_size or len(taskset))
            members = self.group_size if isinstance(taskset, EnvironmentTaskset) else 1
            places[name] = [(index, member) for index in range(count) for member in range(members)]
        return places


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one attempt; an error that is the task's own fault scores 0."""

    trajectory: Trajectory | None = None
    error: Exception | None = None


async def validate(
    pool: EnginePool,
    plan: ValidationPlan,
    *,
    seed: int,
    on_failure: Callable[[Exception, str], Awaitable[object]],
) -> dict[str, float]:
    """Scores the version that the pool serves, on the same tasks and seeds at every evaluation.

    Args:
        pool: engines, held for training, that serve the pinned version.
        plan: what is measured.
        seed: the run's seed.
        on_failure: called with the first failure of each kind, and where it was; what it raises ends the validation.

    Returns:
        ``val/<taskset>/score`` (mean reward), ``/tokens`` (mean response length), ``/failed`` (attempts that failed),
        ``/tasks``, ``/bad_rows`` (left out of all of these), and ``/<part>`` for each part of the reward; of
        environments ``/success``, ``/turns``, ``/invalid_actions``, ``/cut_turns`` and ``/stop/<reason>`` as well.
        Means are NaN where no attempt came to an end.

    Raises:
        EngineError: no engine can be kept alive: that says nothing about the version.
        BrokenContract: a workflow of one's own returned what none may.
    """
    deadlines = PausableDeadlines()
    gate = asyncio.Semaphore(MAX_IN_FLIGHT)
    pinned = pool.serving
    if pinned is None:
        raise RuntimeError("validation needs a version to be served")

    reported: set[type[Exception]] = set()

    async def failed(error: Exception, where: str) -> _Outcome:
        if type(error) not in reported:
            reported.add(type(error))
            await on_failure(error, where)
        return _Outcome(error=error)

    async def one(taskset: Taskset, index: int, member: int) -> _Outcome:
        attempt = Attempt(seed, member, min_version=pinned.version, lineage=pinned.lineage, validation=True)
        async with gate:
            try:
                async with deadlines.limit(plan.attempt_seconds):
                    task = taskset.task(0, index)
                    made = await plan.workflow.run(task, attempt, pool)
                    return _Outcome((await judged_together(plan.workflow, task, [made]))[0])
            except (EngineError, BrokenContract):
                raise
            except Exception as error:
                return await failed(error, f"validation of version {pinned.version}, {taskset.name} task {index}")

    places = plan.places()
    # All at once, so that slow attempts of one taskset keep no engine idle.
    outcomes = iter(await all_or_none(one(plan.tasksets[name], *place) for name in places for place in places[name]))
    metrics: dict[str, float] = {}
    for name in places:
        measured = _metrics_of([next(outcomes) for _ in places[name]])
        metrics |= {f"val/{name}/{key}": value for key, value in measured.items()}
    return metrics


def _metrics_of(outcomes: Sequence[_Outcome]) -> dict[str, float]:
    measured = [outcome for outcome in outcomes if not isinstance(outcome.error, BadRow)]
    made = [outcome.trajectory for outcome in measured if outcome.trajectory is not None]

    def mean(values: Sequence[float]) -> float:
        # a failed attempt adds 0, and counts; where all have failed nothing is known of the version
        return float(np.sum(values)) / len(measured) if made else float("nan")

    parts = sorted({part for trajectory in made for part in trajectory.reward_parts})
    episodes = [trajectory for trajectory in made if "success" in trajectory.metrics]
    return {
        "score": mean([trajectory.reward for trajectory in made]),
        "tokens": mean([float(trajectory.loss_mask.sum()) for trajectory in made]),
        "failed": float(len(measured) - len(made)),
        "tasks": float(len(measured)),
        "bad_rows": float(len(outcomes) - len(measured)),
        **{part: mean([trajectory.reward_parts.get(part, 0.0) for trajectory in made]) for part in parts},
        **{name: total / len(measured) for name, total in episode_sums(episodes).items()},
    }
