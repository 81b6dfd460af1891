"""Validates the environments that env managers name (promise P9)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from functools import partial

from rljax.config.fields import ConfigError
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.schema import Config


def check_tags(config: Config) -> Refusals:
    """Refuses environments that cannot be played."""
    managers = (partial(_check_manager, which) for which in ("train", "val"))
    return collected(config, *managers, _check_places, _check_end, _check_played)


def _check_manager(which: str, config: Config) -> Refusals:
    path, tags = f"rollout.{which}_env_manager.tags", getattr(config.rollout, f"{which}_env_manager").tags
    section, tasksets = config.explored if which == "train" else ("tasks.validation", config.tasks.validation)
    each = [
        partial(rule, tag)
        for tag in dict.fromkeys(tags)
        for rule in (partial(_check_tag, path, tasksets), _check_action, _check_budget, _check_history)
    ]
    asked = partial(_check_workflow, path if tags else "", section if tasksets else "")
    return collected(config, asked, partial(_check_shares, which), *each)


def _check_shares(which: str, config: Config) -> Refusals:
    yield from refused_by(getattr, config, f"{which}_groups")


def _check_places(config: Config) -> Refusals:
    for tag in dict.fromkeys((*config.rollout.train_env_manager.tags, *config.rollout.val_env_manager.tags)):
        if tag in config.custom_envs:
            yield from collected(config, partial(_check_place, tag))


def _check_place(tag: str, config: Config) -> Refusals:
    place = config.rollout.env_place
    if (place or config.custom_envs[tag].place) == "ray" and config.launcher != "ray":
        key = "rollout.env_place" if place else f"custom_envs.{tag}.place"
        yield ConfigError(f"{key}='ray': launcher={config.launcher} joins no cluster; write launcher=ray or process")


def _check_end(config: Config) -> Refusals:
    endless = config.rollout.train_env_manager.tags and not config.explored[1]
    if config.total_epochs is not None and endless:
        yield ConfigError(
            f"total_epochs={config.total_epochs}: environments have no last task; leave it out, max_steps ends the run"
        )


def _check_played(config: Config) -> Refusals:
    """Refuses what cannot be played; a tag of a manager's is judged there."""
    known, tag = ", ".join(sorted(config.custom_envs)), config.play.tag
    if config.mode != "play":
        return
    if config.played_tag is None:
        yield ConfigError(f"--config.play.tag: missing, and no env manager has tags; write one of {known}")
    elif tag is not None and tag not in config.custom_envs:
        close = difflib.get_close_matches(tag, config.custom_envs, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {known}"
        yield ConfigError(f"play.tag={tag!r}: not in custom_envs; {hint}")


def _check_workflow(tags: str, tasksets: str, config: Config) -> Refusals:
    """Refuses a workflow for tasks of the other kind; ``tags`` and ``tasksets`` are the keys that ask for either."""
    workflow = config.rollout.workflow
    wrong, kind = {"single_turn": (tags, "environments"), "multi_turn": (tasksets, "questions")}.get(workflow, ("", ""))
    if wrong:
        yield ConfigError(
            f"rollout.workflow={workflow!r}: does not take the {kind} of {wrong}; leave it out, and each kind of task "
            "has its own"
        )


def _check_tag(path: str, tasksets: Collection[str], tag: str, config: Config) -> Refusals:
    known = config.custom_envs
    if tag not in known:
        close = difflib.get_close_matches(tag, known, n=1) or sorted(known)
        yield ConfigError(f"{path}: {tag!r} is not in custom_envs; did you mean {' or '.join(close)}?")
    elif not known[tag].id:
        yield ConfigError(f"custom_envs.{tag}.id: missing; write a gymnasium id, or PACKAGE:ID")
    if tag in tasksets:
        yield ConfigError(f"{path}: {tag!r} is a taskset's name as well; rename one of them")


def _check_action(tag: str, config: Config) -> Refusals:
    if tag not in config.custom_envs:
        return
    path, pattern = f"custom_envs.{tag}.action_pattern", config.custom_envs[tag].action_pattern
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        yield ConfigError(f"{path}: no regular expression ({error})")
        return
    if not groups:
        yield ConfigError(f"{path}: has no group (…) that holds the action")


def _check_budget(tag: str, config: Config) -> Refusals:
    budget = config.custom_envs[tag].max_tokens_per_turn if tag in config.custom_envs else None
    if budget is not None and budget > (longest := config.model.max_response_tokens):
        yield ConfigError(f"custom_envs.{tag}.max_tokens_per_turn={budget}: above model.max_response_tokens={longest}")


def _check_history(tag: str, config: Config) -> Refusals:
    environment = config.custom_envs.get(tag)
    if not environment or not (shown := environment.history_length):
        return
    if not any("{history}" in text for text in (environment.template, environment.first_template)):
        yield ConfigError(
            f"custom_envs.{tag}.history_length={shown}: nothing shows these turns; write {{history}} into the template"
        )
