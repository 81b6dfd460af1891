"""Measuring one pinned version on the held-out tasks (promise P8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np

from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.pool import EnginePool
from rljax.rollout.workflow import Attempt, Workflow
from rljax.tasks.task import BadRow, Taskset

MAX_IN_FLIGHT = 512
"""Validation attempts at once."""


async def validate(
    pool: EnginePool,
    workflow: Workflow,
    tasksets: Mapping[str, Taskset],
    *,
    seed: int,
    batch_size: int | None,
    attempt_seconds: float,
) -> dict[str, float]:
    """Scores the version that the pool serves, on the same tasks and seeds at every evaluation.

    Args:
        pool: engines, held for training, that serve the pinned version.
        workflow: makes the trajectories, with validation's own sampling.
        tasksets: what is held out, by name.
        seed: the run's seed.
        batch_size: tasks of each taskset; None for all.
        attempt_seconds: limit of one attempt; one that fails or exceeds it scores 0 and is counted.

    Returns:
        ``val/<taskset>/score`` (mean reward), ``/tokens`` (mean response length), ``/failed`` (attempts that failed),
        ``/tasks``, and ``/<part>`` for each part of the reward.
    """
    deadlines = PausableDeadlines()
    gate = asyncio.Semaphore(MAX_IN_FLIGHT)
    pinned = pool.serving
    if pinned is None:
        raise RuntimeError("validation needs a version to be served")

    async def one(taskset: Taskset, index: int) -> tuple[float, float, Mapping[str, float], bool]:
        attempt = Attempt(seed, 0, min_version=pinned.version, lineage=pinned.lineage, validation=True)
        async with gate:
            try:
                async with deadlines.limit(attempt_seconds):
                    done = await workflow.run(taskset.task(0, index), attempt, pool)
            except (BadRow, TimeoutError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
                return 0.0, 0.0, {}, True
        return done.reward, float(done.loss_mask.sum()), done.reward_parts, False

    metrics: dict[str, float] = {}
    for name, taskset in tasksets.items():
        count = min(len(taskset), batch_size or len(taskset))
        rows = await asyncio.gather(*(one(taskset, index) for index in range(count)))
        prefix = f"val/{name}"
        metrics[f"{prefix}/score"] = float(np.mean([row[0] for row in rows]))
        metrics[f"{prefix}/tokens"] = float(np.mean([row[1] for row in rows]))
        metrics[f"{prefix}/failed"] = float(sum(row[3] for row in rows))
        metrics[f"{prefix}/tasks"] = float(count)
        for part in sorted({part for row in rows for part in row[2]}):
            metrics[f"{prefix}/{part}"] = float(np.mean([row[2].get(part, 0.0) for row in rows]))
    return metrics
