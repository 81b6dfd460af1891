"""Says which checkpoints of a run a config names, by their directories alone: none is opened."""

from __future__ import annotations

from pathlib import Path

from rljax.config.fields import ConfigError
from rljax.config.refusals import joined
from rljax.config.schema import Config
from rljax.learner.checkpoints import Checkpoints
from rljax.pipeline.run_dir import RunDir

INITIAL = 0
"""Batches seen by the weights that the model came with."""


def chosen_checkpoints(config: Config, run: RunDir) -> list[int]:
    """Returns the checkpoints that ``config.checkpoint`` names, as batches completed.

    Raises:
        ConfigError: it names a checkpoint that does not exist.
    """
    committed = _committed(config, run)
    if config.checkpoint == "initial":
        return [INITIAL]
    if config.checkpoint == "all":
        return [INITIAL, *committed]
    if config.checkpoint == "latest":
        return committed[-1:] or [INITIAL]
    if config.checkpoint.isdigit() and int(config.checkpoint) in [INITIAL, *committed]:
        return [int(config.checkpoint)]
    known = ", ".join(map(str, committed)) or "none"
    raise ConfigError(f"checkpoint={config.checkpoint}: write latest, all, initial or one of those kept: {known}")


def oldest_checkpoint(config: Config, run: RunDir) -> int:
    """Returns the oldest checkpoint of a run, as batches completed."""
    return min(_committed(config, run), default=INITIAL)


def export_targets(config: Config, run: RunDir) -> dict[int, Path]:
    """Returns the directory that each chosen checkpoint is exported to, by batches completed.

    Raises:
        ConfigError: some were exported before, or there is no such checkpoint; all but the first are its ``others``.
    """
    targets = {steps: run.root / "export" / f"step_{steps}" for steps in chosen_checkpoints(config, run)}
    refused = [
        ConfigError(f"{target}: is there already; remove it to export again, or choose another checkpoint")
        for target in targets.values()
        if target.exists() or target.with_name(f"{target.name}_adapter").exists()
    ]
    if refused:
        raise joined(refused)
    return targets


def replayed_steps(config: Config, run: RunDir) -> range:
    """Returns the steps that are trained again: from ``config.checkpoint`` (default: the oldest) to the newest.

    Raises:
        ConfigError: there are no two points to replay between, or there is no such checkpoint.
    """
    committed = _committed(config, run)
    start, end = _start(config, committed), max(committed, default=INITIAL)
    if start >= end:
        raise ConfigError(
            f"checkpoint={config.checkpoint}: nothing to replay from {start} to the newest checkpoint {end}; "
            "checkpoint=initial replays all that was trained, checkpoint=N what follows N"
        )
    return range(start, end)


def _start(config: Config, committed: list[int]) -> int:
    if config.checkpoint == "latest":
        return min(committed, default=INITIAL)
    if config.checkpoint == "initial":
        return INITIAL
    if config.checkpoint.isdigit() and int(config.checkpoint) in [INITIAL, *committed]:
        return int(config.checkpoint)
    raise ConfigError(f"checkpoint={config.checkpoint}: write initial, or one of those kept: {committed}")


def _committed(config: Config, run: RunDir) -> list[int]:
    return Checkpoints(run.checkpoints, config.learner.checkpoints_to_keep).committed()
