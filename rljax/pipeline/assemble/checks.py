"""Checks what a run needs before it begins, so that one that is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rljax.config.refusals import refused_by, table
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.learner.sharding import select_devices
from rljax.pipeline.assemble.devices import check_shared
from rljax.pipeline.assemble.engines import pool_devices
from rljax.pipeline.assemble.judges import places_of_judges
from rljax.pipeline.assemble.reward_models import check_reward_models, devices_of_reward_models
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.workflows import chosen_workflow, reward_names
from rljax.tasks.rewards.runner import RewardRunner

_PRINTED = 200
"""Characters that are shown of what a reward printed before it failed."""


def check_tasks(config: Config, tasksets: Tasksets) -> None:
    """Opens the rewards, workflow and tasksets of this process, tries the rewards, and looks at the files of reward
    models.

    Raises:
        ConfigError, BadRow: one of them does not work.
    """
    if config.mode != "train":
        chosen_workflow(config)
        names = reward_names(config)
        check_reward_models(config)
        _ = tasksets.training, tasksets.held_out
        _try_rewards(config, tasksets, names)
    if config.mode != "explore" and config.demonstrations_per_batch:
        _ = tasksets.expert


def _try_rewards(config: Config, tasksets: Tasksets, names: Iterable[str]) -> None:
    """Calls rewards; what an async one says that asks judges or reward models, which are yet to start, is not known.

    Each explorer calls them again before it claims: it may be another process, on another machine.
    """
    to_come = {"judges": config.judges, "reward_models": config.reward_models}
    sections = (config.explored[0], tasksets.training), ("tasks.validation", tasksets.held_out)
    opened = [(f"{section}.{name}", one) for section, ones in sections for name, one in ones.items()]

    async def trial(log: Path) -> None:
        limit = config.rollout.reward_timeout
        with RewardRunner(names, timeout=limit, workers=1, log=log, to_come=to_come) as rewards:
            await rewards.try_out(opened)

    # What they print is no run's yet, and comes again when the explorer calls them.
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as pool:
        log = Path(directory) / "rewards.log"
        try:
            pool.submit(asyncio.run, trial(log)).result()  # a notebook's own thread has an event loop running already
        except ConfigError as error:
            printed = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
            if not printed:
                raise
            raise ConfigError(f"{error}; it printed last: {printed.splitlines()[-1][:_PRINTED]}") from error


def check_devices(config: Config) -> None:
    """Looks for the devices of this process's learner, engines, judges and reward models, as far as it chooses them:
    Ray does others.

    Raises:
        ConfigError: some are not there, or cannot be divided so: all that is refused of them.
    """
    if config.launcher != "local":
        return
    refused: list[ConfigError] = []
    if config.mode != "explore":
        refused += refused_by(_place_learner, config)
    if config.mode != "train":
        refused += refused_by(pool_devices, config)
        refused += refused_by(_place_scorers, config)
    if refused:
        raise table("devices that are refused", refused)


def _place_learner(config: Config) -> None:
    check_shared(config, select_devices(config.learner.devices, config.learner.mesh.size))


def _place_scorers(config: Config) -> None:
    devices_of_reward_models(config, places_of_judges(config))
