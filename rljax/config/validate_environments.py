"""Validates the environments that env managers name (promise P9)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rljax.config.environments import EnvironmentConfig
from rljax.config.fields import ConfigError, hold
from rljax.config.schema import Config


def check_tags(config: Config) -> None:
    """Refuses environments that cannot be played.

    Raises:
        ConfigError: on the first one.
    """
    each: list[Callable[[Config], None]] = []
    for path, tags, section, others in (
        ("rollout.train_env_manager", config.train_groups, *config.explored),
        ("rollout.val_env_manager", config.val_groups, "tasks.validation", config.tasks.validation),
    ):
        _check_workflow(config.rollout.workflow, f"{path}.tags" if tags else "", section if others else "")
        each += [partial(_check_environment, tag=tag, path=f"{path}.tags", tasksets=others) for tag in tags]
    hold(config, *each)
    for tag in {*config.train_groups, *config.val_groups}:
        if config.environments[tag].place == "ray" and config.launcher != "ray":
            key = "rollout.env_place" if config.rollout.env_place else f"custom_envs.{tag}.place"
            raise ConfigError(
                f"{key}='ray': launcher={config.launcher} joins no cluster; write launcher=ray or process"
            )
    if config.total_epochs is not None and config.train_groups and not config.explored[1]:
        raise ConfigError(
            f"total_epochs={config.total_epochs}: environments have no last task; leave it out, max_steps ends the run"
        )


def _check_workflow(workflow: str, tags: str, tasksets: str) -> None:
    """Refuses a workflow for tasks of the other kind; ``tags`` and ``tasksets`` are the keys that ask for either."""
    wrong, kind = {"single_turn": (tags, "environments"), "multi_turn": (tasksets, "questions")}.get(workflow, ("", ""))
    if wrong:
        raise ConfigError(
            f"rollout.workflow={workflow!r}: does not take the {kind} of {wrong}; leave it out, and each kind of task "
            "has its own"
        )


def _check_environment(config: Config, tag: str, path: str, tasksets: Mapping[str, Any]) -> None:
    _check_tag(path, tag, config.custom_envs, tasksets)
    _check_action(f"custom_envs.{tag}", config.custom_envs[tag])
    _check_turns(f"custom_envs.{tag}", config.custom_envs[tag], config.model.max_response_tokens)


def _check_tag(path: str, tag: str, known: Mapping[str, EnvironmentConfig], tasksets: Mapping[str, Any]) -> None:
    if tag not in known:
        close = difflib.get_close_matches(tag, known, n=1) or sorted(known)
        raise ConfigError(f"{path}: {tag!r} is not in custom_envs; did you mean {' or '.join(close)}?")
    if tag in tasksets:
        raise ConfigError(f"{path}: {tag!r} is a taskset's name as well; rename one of them")
    if not known[tag].id:
        raise ConfigError(f"custom_envs.{tag}.id: missing; write a gymnasium id, or PACKAGE:ID")


def _check_action(path: str, environment: EnvironmentConfig) -> None:
    try:
        groups = re.compile(environment.action_pattern).groups
    except re.error as error:
        raise ConfigError(f"{path}.action_pattern: no regular expression ({error})") from None
    if not groups:
        raise ConfigError(f"{path}.action_pattern: has no group (…) that holds the action")


def _check_turns(path: str, environment: EnvironmentConfig, max_response_tokens: int) -> None:
    budget, shown = environment.max_tokens_per_turn, environment.history_length
    if budget is not None and budget > max_response_tokens:
        raise ConfigError(f"{path}.max_tokens_per_turn={budget}: above model.max_response_tokens={max_response_tokens}")
    if shown and not any("{history}" in text for text in (environment.template, environment.first_template)):
        raise ConfigError(
            f"{path}.history_length={shown}: nothing shows these turns; write {{history}} into the template"
        )
