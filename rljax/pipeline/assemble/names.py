"""Looks up what a config names: functions, rewards, files. It takes no library that takes seconds to import, and a
config that is refused too, of which only some keys can be read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from rljax.algorithms.registry import advantages, check_names
from rljax.config.choice import named_in
from rljax.config.distill import TEACHERS
from rljax.config.extras import GENERATE, extra_refusals, opened_rows
from rljax.config.fields import ConfigError
from rljax.config.model import check_model_path
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.registries import user_defined_names, workflows
from rljax.config.schema import Config, RowsConfig, TasksetConfig
from rljax.tasks.rewards.registry import own_rewards, resolve_reward, reward_terms
from rljax.tasks.tasksets import check_source, row_refusals

if TYPE_CHECKING:
    from rljax.rollout.workflows.tools import Tools
    from rljax.rollout.workflows.workflow import Workflow

_LEARN = ("both", "train", "explore", "replay", "plan")
"""Modes that use functions of the objective."""
_TEACH = ("both", "train", "replay", "plan")
"""Modes that need teachers."""


def lookup_refusals(config: Config) -> Refusals:
    """Yields what is refused of packages, functions, rewards and files that a config names."""
    return collected(config, extra_refusals, name_refusals, file_refusals, taskset_refusals)


def name_refusals(config: Config) -> Refusals:
    """Yields what is refused of the functions and environments that a config names, whose modules this imports; it
    calls none, and makes none.
    """
    return collected(config, _check_algorithm, _check_reach, _check_workflow, _check_rewards, _check_environments)


def file_refusals(config: Config) -> Refusals:
    """Yields what is refused of the sources of tasksets and of the model, of which it opens none."""
    return collected(config, _check_sources, _check_model)


def taskset_refusals(config: Config) -> Refusals:
    """Yields what is refused of the options of sources, and of the columns of files that are here, of which it reads
    the beginning.
    """
    for path, rows in opened_rows(config).items():
        yield from collected(rows, partial(row_refusals, on_bad_row=config.tasks.on_bad_row, key=path))


def chosen_workflow(config: Config) -> Callable[[Tools], Workflow]:
    """Returns the class of the workflow that a config names, with its arguments.

    Raises:
        ConfigError: there is none; or it takes other arguments, or cannot run.
    """
    name = config.rollout.workflow
    made: Callable[[Tools], Workflow] = workflows.bound(name, config.rollout.workflow_args)
    if not inspect.iscoroutinefunction(getattr(workflows.get(name), "run", None)):
        raise ConfigError(f"rollout.workflow={name!r}: has no async def run(self, task, attempt, pool)")
    return made


def played_tags(config: Config) -> tuple[list[str], list[str]]:
    """Returns the tags that a run of the config plays: those whose environments compute here, and those on a cluster's
    nodes, which may have others.
    """
    known, asked = config.environments, list[str]()
    if config.mode == "play":
        asked = [config.played_tag or ""]
    elif config.mode in GENERATE:
        asked = [*dict.fromkeys((*config.train_groups, *config.val_groups))]
    tags = [tag for tag in asked if tag in known]  # that one is not there is refused of every config
    there = [tag for tag in tags if known[tag].place == "ray"]
    return [tag for tag in tags if tag not in there], there


def compares_with_greedy(config: Config) -> bool:
    """Returns whether the estimator compares the responses of a group with the likeliest one."""
    return "greedy" in advantages.needs(config.algorithm.adv_estimator, config.algorithm.advantage)


def scored_tasksets(config: Config) -> Iterator[tuple[str, TasksetConfig]]:
    """Yields the tasksets of training and validation, each with the key that describes it."""
    for section, tasksets in (config.explored, ("tasks.validation", config.tasks.validation)):
        yield from ((f"{section}.{name}", taskset) for name, taskset in tasksets.items())


def reward_refusals(config: Config) -> Refusals:
    """Yields what is refused of the rewards of training and validation: one does not exist, or has no such arguments;
    or it takes whole groups, and the workflow judges none, or the estimator compares with a response in none.
    """
    for path, taskset in scored_tasksets(config):
        checks = [partial(_check_reward, f"{path}.rewards", name) for name in taskset.rewards]
        refused = list(collected(config, *checks))
        yield from refused
        if not refused:
            yield from refused_by(reward_terms, taskset.rewards, None, f"{path}.rewards", taskset.reward_args)


def _check_algorithm(config: Config) -> Refusals:
    if config.mode in _LEARN:
        yield from refused_by(check_names, config.algorithm)


def _check_reach(config: Config) -> Refusals:
    """Refuses functions registered in this process, which the explorer's, with the same config, does not have."""
    if config.mode != "both" or not config.explorer.own_process:
        return
    functions = *config.algorithm.functions(), *named_in(config.rollout, "rollout")
    named = [(one.key, one.name, user_defined_names(one.slots)) for one in functions]
    for kind in ("train", "validation"):
        for taskset, fields in getattr(config.tasks, kind).items():
            named += [(f"tasks.{kind}.{taskset}.rewards", name, own_rewards()) for name in fields.rewards]
    for key, name, only_here in named:
        if name in only_here:
            yield ConfigError(
                f"{key}={name!r}: registered in this process, and with explorer.own_process=true the explorer is "
                "another; put the function into a file and write module:function"
            )


def _check_workflow(config: Config) -> Refusals:
    if config.mode in GENERATE:
        yield from refused_by(chosen_workflow, config)


def _check_rewards(config: Config) -> Refusals:
    if config.mode in GENERATE:
        yield from reward_refusals(config)


def _check_environments(config: Config) -> Refusals:
    if here := played_tags(config)[0]:
        from rljax.rollout.environments.smoke_check import unknown_ids

        yield from unknown_ids(here, config.environments)


def _check_reward(key: str, name: str, config: Config) -> Refusals:
    if not resolve_reward(name, key).of_groups:
        return
    workflow = config.rollout.workflow
    if not hasattr(workflows.get(workflow), "judge_group"):
        yield ConfigError(f"{key}={name!r}: takes whole groups; give {workflow} an async def judge_group")
    if compares_with_greedy(config) and not key.startswith("tasks.validation."):
        estimator = f"adv_estimator={config.algorithm.adv_estimator}"
        yield ConfigError(f"{key}={name!r}: takes whole groups; {estimator} compares with one outside")


def _check_sources(config: Config) -> Refusals:
    for path, rows in opened_rows(config).items():
        yield from collected(rows, partial(_check_source, path))


def _check_source(path: str, rows: RowsConfig) -> Refusals:
    if rows.source:  # that there is none is refused of every config
        yield from refused_by(check_source, rows.source, path)


def _check_model(config: Config) -> Refusals:
    of_model = config.mode != "play" or config.play.agent == "model"
    if of_model and config.mode not in ("audit", "report"):
        yield from refused_by(check_model_path, config.model.path)
    for name, teacher in config.algorithm.distill.stored.items() if config.mode in _TEACH else ():
        for error in refused_by(check_model_path, teacher.path):
            yield type(error)(f"{TEACHERS}.{name}: {error}")
