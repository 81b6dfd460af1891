"""Builds the learner of a run, fresh or as its newest checkpoint left it."""

from __future__ import annotations

from rljax.config import Config
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.ledger.database import Database
from rljax.ledger.leases import survives
from rljax.models.hf_files import load_directory
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.setup import Model


def open_checkpoints(config: Config, run: RunDir) -> Checkpoints:
    """The checkpoints of a run."""
    return Checkpoints(run.checkpoints, config.learner.checkpoints_to_keep)


def newest_checkpoint(db: Database, checkpoints: Checkpoints) -> int:
    """Batches seen by the newest committed checkpoint that the living history grew out of; 0 without one."""
    committed = reversed(checkpoints.committed())
    return next((s for s in committed if survives(db, int(checkpoints.metadata(s).get("lineage", 0)), s)), 0)


def build_learner(config: Config, model: Model, checkpoints: Checkpoints, steps: int) -> Learner:
    """A learner that has seen ``steps`` batches: 0 is the model as it came, otherwise a committed checkpoint.

    Raises:
        ConfigError: a name in the algorithm section leads nowhere, or the devices are not there.
        CheckpointError: the checkpoint cannot be restored.
    """
    architecture, params = load_directory(model.directory)
    learner = Learner(config, architecture, params)
    if steps:
        learner.restore(checkpoints, steps)
    return learner
