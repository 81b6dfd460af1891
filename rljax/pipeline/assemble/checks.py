"""Checks what a run needs before it begins, all of it at once, so that one that is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rljax.config.extras import GENERATE, extra_refusals, generates, missing, opened_rows
from rljax.config.refusals import Refusals, collected, joined, refused_by, table
from rljax.config.schema import Config, TasksetConfig
from rljax.config.validate import ConfigError
from rljax.learner.sharding import select_devices
from rljax.ledger.database import LedgerError
from rljax.pipeline.assemble.checkpoints import chosen_checkpoints, export_targets, replayed_steps
from rljax.pipeline.assemble.devices import check_deltas, check_shared
from rljax.pipeline.assemble.engines import pool_devices
from rljax.pipeline.assemble.judges import places_of_judges
from rljax.pipeline.assemble.names import file_refusals, lookup_refusals, name_refusals, taskset_refusals
from rljax.pipeline.assemble.reward_models import check_reward_models, devices_of_reward_models
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.run_dir import RunDir
from rljax.tasks.rewards.registry import known_rewards
from rljax.tasks.rewards.runner import RewardRunner
from rljax.tasks.task import BadRow, Taskset
from rljax.tasks.tasksets import Role, is_of_hub, load_taskset

_LEARN = ("both", "train", "replay")
"""Modes that compute on the learner's devices; those with engines are told by `generates`."""
_PRINTED = 200
"""Characters that are shown of what a reward printed before it failed."""


def check_run(config: Config, tasksets: Tasksets, *, begins: bool) -> None:
    """Looks at what a run needs here: packages, and the functions that its config names; where it ``begins``, what
    `check_start` looks at too.

    Raises:
        ConfigError: all that is refused of them.
    """
    _refuse([*extra_refusals(config), *name_refusals(config), *(_start_refusals(config, tasksets) if begins else ())])


def check_start(config: Config, tasksets: Tasksets) -> None:
    """Looks at what a run needs here to begin, or to go on: files, tasks, rewards and devices.

    Raises:
        ConfigError: all that is refused of them.
    """
    _refuse([*_start_refusals(config, tasksets)])


def _start_refusals(config: Config, tasksets: Tasksets) -> Refusals:
    refused = [*refused_by(check_devices, config), *file_refusals(config), *taskset_refusals(config)]
    yield from refused
    if not (refused and any(map(is_of_hub, opened_rows(config).values()))):  # who waits for a download hears the rest
        yield from _unsaid_of_tasks(config, tasksets)


def _unsaid_of_tasks(config: Config, tasksets: Tasksets) -> Refusals:
    said = tuple(f"{need.key}:" for need in missing(config))  # opening a source would say it again
    yield from (error for error in refused_by(check_tasks, config, tasksets) if not str(error).startswith(said))


def _refuse(refused: Sequence[ConfigError]) -> None:
    if refused:
        raise table("what is refused", refused)


def check_mode(config: Config, tasksets: Tasksets | None = None) -> None:
    """Looks at what a mode needs here that takes up a run or a checkpoint, before a model is opened; of one that
    scores, its tasks and rewards too.

    Raises:
        ConfigError: all that is refused of it.
    """
    _refuse([*early_refusals(config), *(() if tasksets is None else _unsaid_of_tasks(config, tasksets))])


def early_refusals(config: Config) -> Refusals:
    """Yields what is refused of a mode here before anything is opened, also of a config that is refused already, as
    far as its keys can be read.
    """
    return collected(config, lookup_refusals, _measured, _of_one_process, _begun)


def _of_one_process(config: Config) -> Refusals:
    """Looks for devices where they are all here: those of several hosts are counted once the hosts have met."""
    if config.learner.hosts.number == 1:
        yield from collected(config, *_PLACES)


def _measured(config: Config) -> Refusals:
    if config.mode == "evaluate" and not config.validates:
        yield ConfigError("tasks.validation and rollout.val_env_manager.tags: nothing to evaluate on")


def _begun(config: Config) -> Refusals:
    """Refuses a mode that takes up a run or a checkpoint where there is none, or has exported it before."""
    published = config.mode == "serve" and config.serve.published
    of_checkpoint = config.mode in ("evaluate", "export", "serve") or (config.mode == "play" and generates(config))
    if published or config.mode == "replay" or (of_checkpoint and config.checkpoint != "initial"):
        with contextlib.suppress(LedgerError):  # who opens it says so
            if refused := [*refused_by(RunDir.existing, config)]:
                yield from refused
                return
    if config.mode == "replay":
        yield from refused_by(replayed_steps, config, RunDir.at(config))
    elif of_checkpoint and not published:
        named = export_targets if config.mode == "export" else chosen_checkpoints
        yield from refused_by(named, config, RunDir.at(config))


def check_tasks(config: Config, tasksets: Tasksets) -> None:
    """Opens the tasksets of this process, tries their rewards, and looks at the files of reward models.

    Raises:
        ConfigError: some of them do not work; all but the first are its ``others``.
    """
    if refused := [*_task_refusals(config, tasksets)]:
        raise joined(refused)


def _task_refusals(config: Config, tasksets: Tasksets) -> Refusals:
    tried: list[tuple[str, Taskset]] = []
    if config.mode in GENERATE:
        yield from refused_by(check_reward_models, config)
        section, explored = config.explored
        if config.mode != "evaluate":
            tried += yield from _opened(config, tasksets, "training", section, explored)
        tried += yield from _opened(config, tasksets, "held_out", "tasks.validation", config.tasks.validation)
        yield from refused_by(_try_rewards, config, tried)
    if config.mode in ("both", "train") and config.demonstrations_per_batch:
        yield from _opened(config, tasksets, "expert", "tasks", {})


def _opened(
    config: Config, tasksets: Tasksets, side: str, section: str, asked: Mapping[str, TasksetConfig]
) -> Generator[ConfigError, None, list[tuple[str, Taskset]]]:
    """Opens one side of the tasksets, and returns them with their keys; where that is refused, which it yields, those
    of it that work alone, with those of their rewards that there are, so that these are tried.
    """
    try:
        opened = getattr(tasksets, side)
    except (ConfigError, BadRow) as error:
        yield from _said_of(error)
    else:
        return [(f"{section}.{name}", opened[name]) for name in asked]
    left: list[tuple[str, Taskset]] = []
    role: Role = "validation" if side == "held_out" else "train"
    for name, one in asked.items():
        known = known_rewards(one.rewards)
        args = {scorer.part: one.reward_args[scorer.part] for scorer in known if scorer.part in one.reward_args}
        names = tuple(scorer.name for scorer in known)
        there = dataclasses.replace(one, rewards=names, reward_weights=None, reward_args=args)
        try:
            loaded = load_taskset(name, there, config.seed, config.tasks.on_bad_row, role=role, section=section)
        except (ConfigError, BadRow) as error:  # what a reward that there is not hid, or what is said already
            yield from _said_of(error)
        else:
            left.append((f"{section}.{name}", loaded))
    return left


def _said_of(error: ConfigError | BadRow) -> Refusals:
    yield from (error, *error.others) if isinstance(error, ConfigError) else [ConfigError(str(error))]


def _try_rewards(config: Config, tasksets: Sequence[tuple[str, Taskset]]) -> None:
    """Calls rewards; what an async one says that asks judges or reward models, which are yet to start, is not known.

    Each explorer calls them again before it claims: it may be another process, on another machine.

    Args:
        config: how, and what judges and reward models there will be.
        tasksets: those that are scored, each with the key that describes it.
    """
    to_come = {"judges": config.judges, "reward_models": config.reward_models}
    names = {term.name for _, one in tasksets if len(one) for term in one.task(0, 0).rewards}

    async def trial(log: Path) -> None:
        limit = config.rollout.reward_timeout
        with RewardRunner(names, timeout=limit, workers=1, log=log, to_come=to_come) as rewards:
            await rewards.try_out(tasksets)

    # What they print is no run's yet, and comes again when the explorer calls them.
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as pool:
        log = Path(directory) / "rewards.log"
        try:
            pool.submit(asyncio.run, trial(log)).result()  # a notebook's own thread has an event loop running already
        except ConfigError as error:
            printed = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
            if not printed:
                raise
            last = printed.splitlines()[-1][:_PRINTED]
            if not error.others:
                raise ConfigError(f"{error}; it printed last: {last}") from error
            raise joined([error, *error.others, ConfigError(f"what these rewards printed last: {last}")]) from error


def check_devices(config: Config) -> None:
    """Looks for the devices of this process's learner, engines, judges and reward models, as far as it chooses them:
    Ray does others.

    Raises:
        ConfigError: some are not there, or cannot be divided so; all but the first are its ``others``.
    """
    if refused := list(collected(config, *_PLACES)):
        raise joined(refused)


def _place_learner(config: Config) -> Refusals:
    if config.mode in _LEARN:  # on Ray too: the learner stays the process that was started
        yield from refused_by(
            lambda: check_shared(config, select_devices(config.learner.devices, config.learner.mesh.size))
        )


def _place_engines(config: Config) -> Refusals:
    if config.launcher == "local" and generates(config):
        yield from refused_by(pool_devices, config)
        if config.mode == "both":
            yield from refused_by(check_deltas, config)


def _place_scorers(config: Config) -> Refusals:
    if config.launcher == "local" and config.mode in GENERATE:
        yield from refused_by(lambda: devices_of_reward_models(config, places_of_judges(config)))


_PLACES = (_place_learner, _place_engines, _place_scorers)
"""Rules that look for devices."""
