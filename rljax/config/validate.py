"""Validates a config: its single keys, where it runs, and its tasks (promise P9)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rljax.config.algorithm import OptimizerConfig
from rljax.config.choice import Named, named_in
from rljax.config.fields import ConfigError as ConfigError
from rljax.config.fields import check_bounds, check_name, check_path, not_a_choice
from rljax.config.fields import walk as walk
from rljax.config.model import TINY_EXPERTS, TINY_EXPERTS_PER_TOKEN
from rljax.config.refusals import REFUSED, Refusals, collected, readable, refused_by
from rljax.config.registries import advantages, all_names, no_such_name, token_advantages
from rljax.config.schema import Config, LoraConfig, RowsConfig, TasksetConfig
from rljax.config.validate_placement import check_device_names, check_target
from rljax.config.validate_plan import check_speeds
from sidecar.extras import install_command

_PLACES = {"postgresql": "database", "sqlite": "file"}
_CONTEXTS = {"smollm2-135m": 8192}


RESERVED = frozenset({"learner", "trainer"})
"""Names of the learner among the processes of a run and in its trace."""


def check_keys(config: Config) -> Iterator[tuple[str, ConfigError | None]]:
    """Refuses keys that are wrong by themselves."""
    for path, value, metadata in walk(config):
        if value is REFUSED:
            yield path, None
            continue
        bounds = refused_by(check_bounds, path, value, metadata)
        forms = (refused_by(check, path, value) for form, check in _FORMS.items() if fnmatchcase(path, form))
        yield from ((path, error) for error in chain(bounds, *forms))


def check_functions(config: Config) -> Iterator[tuple[str, ConfigError | None]]:
    """Refuses names of functions that there are not."""
    for one in _functions(config):
        if ":" not in one.name and one.name not in all_names(one.slots):
            yield one.key, ConfigError(f"{one.key}={one.name!r}: {no_such_name(one.name, one.slots)}")


def check_own_keys(config: Config) -> Iterator[tuple[str, ConfigError | None]]:
    """Refuses keys of functions by what these say of them."""
    for one in _functions(config):
        yield from readable(_check_own_keys, one)  # one that reads a refused key ends alone


def _check_own_keys(one: Named) -> Iterator[tuple[str, ConfigError | None]]:
    if hasattr(one.keys, "check"):
        yield from ((one.group, error) for error in refused_by(one.keys.check, one.group))


def check_config(config: Config) -> Refusals:
    """Refuses a config that cannot run where it is to, tasks that are none, and models that do not fit."""
    places = (_check_names, _check_heads, _check_tiny_experts, _check_pairs, _check_launcher, _check_ledger)
    algorithm = (_check_overlong, _check_buffer, _check_whitening, _check_greedy_baseline, _check_moments)
    return collected(config, *places, _check_tasksets, _check_trained, *algorithm, _check_adapter, _check_context)


def _functions(config: Config) -> Iterator[Named]:
    return chain(config.algorithm.functions(), named_in(config.rollout, "rollout"))


def _check_explorer(path: str, name: str) -> None:
    check_name(f"{path}=", name, "an explorer's name")
    if name in RESERVED:
        raise ConfigError(f"{path}={name!r}: this is the learner's own name; write another")


def _check_run_dir(path: str, directory: str | None) -> None:
    if directory is not None:
        check_path(path, directory)


def _check_model(path: str, named: str) -> None:
    check_path(path, named)
    if not named:
        raise ConfigError(f"{path}: empty; write a directory, a hub id, smollm2-135m or tiny")


def _check_checkpoint(path: str, named: str) -> None:
    words = ("latest", "all", "initial")
    if not (named.isdecimal() or named in words):
        raise not_a_choice(path, named, words, "a number of batches seen")


_FORMS: dict[str, Callable[[str, Any], None]] = {
    "explorer.name": _check_explorer,
    "model.path": _check_model,
    "checkpoint": _check_checkpoint,
    "compile_cache": check_path,
    "run_dir": _check_run_dir,
    "learner.devices": check_device_names,
    "sidecar.devices": check_device_names,
    "judges.*.devices": check_device_names,
    "reward_models.*.devices": check_device_names,
    "plan.target": check_target,
    "plan.engine_tokens_per_second": check_speeds,
}
"""Checks of single keys beside their bounds, by path."""


def _check_names(config: Config) -> Refusals:
    """Checks the names of tasksets and environments: they name ledger rows, files, metrics and seeds."""
    for section, tasksets in _tasksets(config).items():
        for name in tasksets:
            yield from refused_by(check_name, f"{section}.", name, "a taskset's name")
    for tag in config.custom_envs:
        yield from refused_by(check_name, "custom_envs.", tag, "a tag")


def _tasksets(config: Config) -> dict[str, Mapping[str, TasksetConfig]]:
    return {
        "tasks.train": config.tasks.train,
        "tasks.validation": config.tasks.validation,
        "explorer.tasksets": config.explorer.tasksets,
    }


def _check_heads(config: Config) -> Refusals:
    tiny = config.model.tiny
    if tiny.num_heads % tiny.num_kv_heads:
        yield ConfigError(
            f"model.tiny.num_kv_heads={tiny.num_kv_heads}: must divide model.tiny.num_heads={tiny.num_heads}, whose "
            "heads share theirs evenly"
        )


def _check_tiny_experts(config: Config) -> Refusals:
    tiny = config.model.tiny
    own = {"qwen3_moe": 3, "mixtral": 2}.get(tiny.family, 0)
    keys = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    for name in keys[own:]:
        if getattr(tiny, name) is not None:
            yield ConfigError(f"model.tiny.{name}: model.tiny.family={tiny.family} does not read it; leave it out")
    picked, experts = tiny.num_experts_per_tok or TINY_EXPERTS_PER_TOKEN, tiny.num_experts or TINY_EXPERTS
    if own and picked > experts:
        yield ConfigError(f"model.tiny.num_experts_per_tok={picked}: a layer has {experts} experts; write at most that")


def _check_pairs(config: Config) -> Refusals:
    size = config.model.tiny.head_dim
    if size % 2:
        yield ConfigError(f"model.tiny.head_dim={size}: rotary embeddings take pairs; write an even number")


def _check_launcher(config: Config) -> Refusals:
    address = config.ray.address
    if config.launcher == "local" and address not in ("auto", "local"):
        yield ConfigError(f"ray.address={address!r}: launcher=local joins no cluster; write launcher=ray")


def _check_ledger(config: Config) -> Refusals:
    """Checks the ledger's URL. No message repeats it: it may hold a password."""
    if config.ledger is None:
        return
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    forms = "write postgresql://user:password@host:5432/database, or sqlite:///FILE"
    try:
        url = make_url(config.ledger)
    except (ArgumentError, ValueError):
        yield ConfigError(f"ledger: no URL; {forms}")
        return
    if url.drivername not in _PLACES:
        yield ConfigError(f"ledger={url.drivername}://…: not a database that a ledger can be kept in; {forms}")
        return
    if url.database in (None, "", ":memory:"):
        yield ConfigError(f"ledger={url.drivername}://…: names no {_PLACES[url.drivername]}; {forms}")
    elif url.drivername == "sqlite":
        yield from refused_by(check_path, "ledger", url.database)
    if url.drivername == "postgresql":
        yield from _check_postgres(config)


def _check_postgres(config: Config) -> Refusals:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        yield ConfigError(f"ledger=postgresql://…: needs psycopg 3; {install_command('postgres')}")
    name = config.resolved_ledger_schema
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}", name) or name.startswith("pg_"):
        yield ConfigError(
            f"ledger_schema={name!r}: PostgreSQL takes at most 63 letters, digits, '_', '-' and '.', and not 'pg_' "
            "in front; set one (its default is the last part of run_dir)"
        )


def _check_tasksets(config: Config) -> Refusals:
    for section, tasksets in _tasksets(config).items():
        for name, taskset in tasksets.items():
            rules = (_check_rows, _check_source, _check_rewards)
            yield from collected(taskset, *(partial(rule, f"{section}.{name}") for rule in rules))
    if config.tasks.expert.source:
        yield from _check_rows("tasks.expert", config.tasks.expert)


def _check_trained(config: Config) -> Refusals:
    asked = config.explored[1] or config.rollout.train_env_manager.tags
    explores = config.mode in ("both", "train", "explore") and not config.imitates_alone
    if explores and not asked:
        yield ConfigError(
            "tasks.train: no taskset to train on, and rollout.train_env_manager.tags names no environment either"
        )


def _check_source(path: str, taskset: TasksetConfig) -> Refusals:
    if not taskset.source:
        yield ConfigError(f"{path}.source: missing")


def _check_rewards(path: str, taskset: TasksetConfig) -> Refusals:
    weights = taskset.reward_weights
    if not taskset.rewards and path.startswith("tasks.validation."):  # for training see `validate_distill`
        yield ConfigError(f"{path}.rewards: at least one reward is needed")
    elif weights is not None and len(weights) != len(taskset.rewards):
        counts = f"{len(weights)} weights for {len(taskset.rewards)} rewards"
        yield ConfigError(f"{path}.reward_weights: {counts}; write one for each, or none")


def _check_rows(path: str, rows: RowsConfig) -> Refusals:
    yield from refused_by(check_path, f"{path}.source", rows.source)
    if "{prompt}" not in rows.template:
        yield ConfigError(f"{path}.template={rows.template!r}: must contain {{prompt}}")
    if len(rows.examples) % 2:
        yield ConfigError(f"{path}.examples: {len(rows.examples)} texts; each prompt needs its answer")


def _check_moments(config: Config) -> Refusals:
    for path, owner in (("learner", config.learner), ("algorithm.critic", config.algorithm.critic)):
        for moment in (("mu_dtype", "beta1", 0.9), ("nu_dtype", "beta2", 0.99)):
            yield from collected(owner.optimizer, partial(_check_moment, f"{path}.optimizer", *moment))


def _check_moment(path: str, dtype: str, decay: str, enough: float, optimizer: OptimizerConfig) -> Refusals:
    """Refuses a moment that could not fall: bf16 rounds away what changes a number by less than 2**-8 of it."""
    kept = getattr(optimizer, decay)
    if getattr(optimizer, dtype) == "bf16" and 1 - kept < 2**-8:
        yield ConfigError(
            f"{path}.{dtype}='bf16': {decay}={kept:g} lets it fall by {1 - kept:.2g} of itself in an update, which "
            f"bf16 rounds away, so that it never would; write {decay}={enough:g} or less, or leave it fp32"
        )


def _check_whitening(config: Config) -> Refusals:
    """Refuses a key that the chosen estimator gives no meaning to."""
    name, of_tokens = config.algorithm.adv_estimator, token_advantages.names()
    if config.algorithm.whiten_rewards and name not in of_tokens:
        yield ConfigError(
            f"algorithm.whiten_rewards=True: adv_estimator={name} sees no rewards of tokens; write norm_std=batch, or "
            f"an adv_estimator of {', '.join(of_tokens)}"
        )


def _check_greedy_baseline(config: Config) -> Refusals:
    algorithm = config.algorithm
    changed = algorithm.norm_mean, algorithm.norm_std, algorithm.reward_clip, algorithm.overlong == "penalty"
    if "greedy" in advantages.needs(algorithm.adv_estimator, algorithm.advantage) and any(changed):
        yield ConfigError(
            f"algorithm.adv_estimator={algorithm.adv_estimator!r}: norm_mean, norm_std, reward_clip and "
            "overlong=penalty change the rewards, but not the greedy one that they are compared with; leave them out"
        )


def _check_overlong(config: Config) -> Refusals:
    if config.algorithm.overlong == "penalty" and config.algorithm.overlong_buffer is None:
        yield ConfigError("algorithm.overlong='penalty': needs overlong_buffer, the tokens in which it grows")


def _check_buffer(config: Config) -> Refusals:
    buffer, longest = config.algorithm.overlong_buffer, config.model.max_response_tokens
    if buffer is not None and buffer > longest:
        yield ConfigError(
            f"algorithm.overlong_buffer={buffer}: above model.max_response_tokens={longest}, and even an empty "
            "response would lose something"
        )


def _check_adapter(config: Config) -> Refusals:
    """Refuses keys of an adapter where there is none: nothing would read them."""
    given, default = config.model.lora, LoraConfig()
    for spec in dataclasses.fields(given) if given.rank is None else ():
        if (value := getattr(given, spec.name)) != getattr(default, spec.name):
            yield ConfigError(
                f"model.lora.{spec.name}={value}: there is no adapter; write model.lora.rank=16, say, or leave it out"
            )


def _check_context(config: Config) -> Refusals:
    """Checks the context of the model where its config lies on this disk; others are checked once they are here."""
    file, context = Path(config.model.path) / "config.json", _CONTEXTS.get(config.model.path)
    if os.path.isfile(file):
        try:
            context = json.loads(file.read_text()).get("max_position_embeddings")
        except (OSError, ValueError, AttributeError):
            return  # loading the model reports what is wrong with it
    longest = config.longest
    if isinstance(context, int) and longest > context:
        yield ConfigError(context_error(longest, context))


def context_error(longest: int, context: int) -> str:
    """Returns the message for trajectories of ``longest`` tokens in a model of a shorter ``context``."""
    return (
        f"model.max_prompt_tokens + model.max_response_tokens (or model.sequence_length) = {longest}: more than the "
        f"model's context of {context} tokens; lower it"
    )
