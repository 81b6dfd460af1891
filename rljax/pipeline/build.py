"""Builds the learner of a run, fresh or as its newest checkpoint left it."""

from __future__ import annotations

from rljax.algorithms.registry import check_names
from rljax.config import Config
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.models.hf_files import load_directory
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.setup import Model


def open_checkpoints(config: Config, run: RunDir) -> Checkpoints:
    """The checkpoints of a run."""
    return Checkpoints(run.checkpoints, config.learner.checkpoints_to_keep)


def build_learner(config: Config, model: Model, checkpoints: Checkpoints, steps: int | None) -> Learner:
    """A learner that has seen ``steps`` batches: 0 is the model as it came, None the newest committed checkpoint.

    Raises:
        ConfigError: a name in the algorithm section leads nowhere, or the devices are not there.
        CheckpointError: the checkpoint cannot be restored.
    """
    check_names(config.algorithm)
    architecture, params = load_directory(model.directory)
    learner = Learner(config, architecture, params)
    chosen = checkpoints.latest() if steps is None else steps
    if chosen:
        learner.restore(checkpoints, chosen)
    return learner
