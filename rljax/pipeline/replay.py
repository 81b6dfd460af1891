"""Replays the recorded batches from a checkpoint, and compares (promise P13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from rljax.config.schema import Config
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.ledger import leases
from rljax.ledger.database import Database
from rljax.pipeline.assemble.checkpoints import replayed_steps
from rljax.pipeline.assemble.learner import StepRunner, build_learner, open_checkpoints, open_demonstrations
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.run_dir import RunDir


@dataclass(frozen=True)
class Replayed:
    """Result of one step trained again. ``differing`` counts parameters unlike the checkpoint's; None without one."""

    step: int
    metrics: dict[str, float]
    differing: int | None


def replay(config: Config, run: RunDir, db: Database, model: Model) -> Iterator[Replayed]:
    """Yields every recorded step, trained again, from ``config.checkpoint`` (default: the oldest) to the newest one.

    Raises:
        ConfigError: there are no two points to replay between.
        LedgerError: the batches are no longer kept, or the demonstrations are others.
    """
    steps, checkpoints = replayed_steps(config, run), open_checkpoints(config, run)
    committed = checkpoints.committed()
    learner = build_learner(config, model, checkpoints, steps.start)
    step_runner = StepRunner(learner, open_demonstrations(config, model, db, Tasksets(config)))
    for step in steps:
        (batch,) = leases.recorded_batches(db, step, step + 1)
        metrics = step_runner.train(batch)
        done = step + 1
        differing = _differing(learner, checkpoints, done) if done in committed else None
        yield Replayed(done, metrics, differing)


def _differing(learner: Learner, checkpoints: Checkpoints, steps: int) -> int:
    saved = checkpoints.restore(steps, learner.abstract_state)
    pairs = zip(jax.tree.leaves(learner.state.params), jax.tree.leaves(saved.params), strict=True)
    return sum(int(np.sum(np.asarray(mine) != np.asarray(theirs))) for mine, theirs in pairs)
