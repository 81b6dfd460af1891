"""Validates a config: its single keys, and the combinations that cannot work (promise P9)."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from rljax.config.algorithm import AlgorithmConfig, OptimizerConfig
from rljax.config.choice import named_in
from rljax.config.engines import ENGINES, kinds_with
from rljax.config.fields import ConfigError as ConfigError
from rljax.config.fields import check_bounds, check_name, check_path, hold
from rljax.config.fields import walk as walk
from rljax.config.registries import advantages, all_names, no_such_name, token_advantages
from rljax.config.schema import Config, RowsConfig, TasksetConfig

_PLACES = {"postgresql": "database", "sqlite": "file"}
_CONTEXTS = {"smollm2-135m": 8192}


RESERVED = frozenset({"learner", "trainer"})
"""Names of the learner among the processes of a run and in its trace."""
_LEAST_TEMPERATURE = 0.01
"""vLLM samples at this temperature whatever is below: its log-probabilities would not be those of the config's."""


def check_keys(config: Config) -> None:
    """Refuses keys that are wrong by themselves.

    Raises:
        ConfigError: on the first such.
    """
    _check_names(config)
    for path, value, metadata in walk(config):
        check_bounds(path, value, metadata)
    _check_paths(config)


def check_config(config: Config) -> None:
    """Refuses a config that cannot work.

    Raises:
        ConfigError: a combination is impossible.
    """
    places = (_check_tiny, _check_launcher, _check_ledger)
    tasks = (_check_batch, _check_sampling, _check_validation, _check_tasks)
    hold(config, *places, *tasks, _check_algorithm, _check_moments, _check_context)


def _check_names(config: Config) -> None:
    """Checks the names of explorers, tasksets and environments: they name ledger rows, files, metrics and seeds."""
    check_name("explorer.name=", config.explorer.name, "an explorer's name")
    if config.explorer.name in RESERVED:
        raise ConfigError(f"explorer.name={config.explorer.name!r}: this is the learner's own name; write another")
    for section, tasksets in _tasksets(config).items():
        for name in tasksets:
            check_name(f"{section}.", name, "a taskset's name")
    for tag in config.custom_envs:
        check_name("custom_envs.", tag, "a tag")


def _tasksets(config: Config) -> dict[str, Mapping[str, TasksetConfig]]:
    return {
        "tasks.train": config.tasks.train,
        "tasks.validation": config.tasks.validation,
        "explorer.tasksets": config.explorer.tasksets,
    }


def _check_paths(config: Config) -> None:
    check_path("model.path", config.model.path)
    check_path("compile_cache", config.compile_cache)
    if config.run_dir is not None:
        check_path("run_dir", config.run_dir)


def _check_tiny(config: Config) -> None:
    tiny = config.model.tiny
    if tiny.num_heads % tiny.num_kv_heads:
        raise ConfigError(
            f"model.tiny.num_kv_heads={tiny.num_kv_heads}: must divide model.tiny.num_heads={tiny.num_heads}, whose "
            "heads share theirs evenly"
        )
    if tiny.head_dim % 2:
        raise ConfigError(f"model.tiny.head_dim={tiny.head_dim}: rotary embeddings take pairs; write an even number")


def _check_launcher(config: Config) -> None:
    address = config.ray.address
    if config.launcher == "local" and address not in ("auto", "local"):
        raise ConfigError(f"ray.address={address!r}: launcher=local joins no cluster; write launcher=ray")


def _check_ledger(config: Config) -> None:
    """Checks the ledger's URL. No message repeats it: it may hold a password."""
    if config.ledger is None:
        return
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    forms = "write postgresql://user:password@host:5432/database, or sqlite:///FILE"
    try:
        url = make_url(config.ledger)
    except (ArgumentError, ValueError):
        raise ConfigError(f"ledger: no URL; {forms}") from None
    if url.drivername not in ("postgresql", "sqlite"):
        raise ConfigError(f"ledger={url.drivername}://…: not a database that a ledger can be kept in; {forms}")
    if url.database in (None, "", ":memory:"):
        raise ConfigError(f"ledger={url.drivername}://…: names no {_PLACES[url.drivername]}; {forms}")
    if url.drivername == "sqlite":
        check_path("ledger", url.database)
        return
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise ConfigError("ledger=postgresql://…: needs psycopg 3; pip install -e '.[postgres]'") from None
    name = config.resolved_ledger_schema
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}", name) or name.startswith("pg_"):
        raise ConfigError(
            f"ledger_schema={name!r}: PostgreSQL takes at most 63 letters, digits, '_', '-' and '.', and not 'pg_' "
            "in front; set one (its default is the last part of run_dir)"
        )


def _check_batch(config: Config) -> None:
    batch, group = config.rollout_batch_size, config.group_size
    if batch % group and not config.imitates_alone:
        nearest = max(group, round(batch / group) * group)
        raise ConfigError(
            f"rollout_batch_size={batch}: not a multiple of group_size={group}, and a step trains whole groups; "
            f"nearest that works: {nearest}"
        )
    least = math.ceil(config.async_generation_ratio) + config.sync_interval - 1
    if config.max_staleness is not None and config.max_staleness < least:
        raise ConfigError(
            f"max_staleness={config.max_staleness}: async_generation_ratio={config.async_generation_ratio} and "
            f"sync_interval={config.sync_interval} need at least {least} (⌈α⌉ + k − 1)"
        )
    minibatch = config.algorithm.minibatch_size
    if minibatch is not None and (minibatch > batch or batch % minibatch):
        raise ConfigError(f"algorithm.minibatch_size={minibatch}: must divide rollout_batch_size={batch}")
    parts = config.model.max_prompt_tokens + config.model.max_response_tokens
    asked = config.tasks.train or config.tasks.validation or config.tasks.expert.source
    if asked and config.longest < parts:
        raise ConfigError(
            f"model.sequence_length={config.longest}: below model.max_prompt_tokens + model.max_response_tokens = "
            f"{parts}"
        )
    longest = config.longest
    context = config.sidecar.max_model_len
    if context is not None and context < longest:
        raise ConfigError(f"sidecar.max_model_len={context}: {_longest(longest)}")
    row = config.learner.max_tokens_per_row
    if row is not None and row < longest:
        raise ConfigError(f"learner.max_tokens_per_row={row}: {_longest(longest)}")
    mesh, rows = config.learner.mesh, config.learner.rows_per_microbatch
    if rows % (mesh.data * mesh.fsdp):
        raise ConfigError(
            f"learner.rows_per_microbatch={rows}: must be a multiple of mesh.data × mesh.fsdp = {mesh.data * mesh.fsdp}"
        )


def _longest(tokens: int) -> str:
    return (
        f"a trajectory may be {tokens} tokens long (model.sequence_length, or model.max_prompt_tokens + "
        "model.max_response_tokens)"
    )


def _check_validation(config: Config) -> None:
    """Refuses what validation alone may sample with, where training does or the engine cannot."""
    training, validation = config.sidecar.generating_args, config.sidecar.val_generating_args
    asked = {"sidecar.val_generating_args": (validation, "sidecar.engine", config.sidecar.engine)}
    for judge, its in config.judges.items():
        asked[f"judges.{judge}.generating_args"] = its.generating_args, f"judges.{judge}.engine", its.engine
    for name, unset in (("min_p", 0.0), ("repetition_penalty", 1.0)):
        if (trained := getattr(training, name)) != unset:
            raise ConfigError(
                f"sidecar.generating_args.{name}={trained}: what is sampled so is not of the policy that is trained; "
                f"leave it out (validation has its own: sidecar.val_generating_args.{name})"
            )
        for path, (generating, key, engine) in asked.items():
            if (value := getattr(generating, name)) != unset and not ENGINES[engine].penalises:
                others = f"{key}={kinds_with(penalises=True)}"
                raise ConfigError(f"{path}.{name}={value}: {key}={engine} has none; leave it out, or write {others}")
    members = config.rollout.val_env_manager.group_size
    if members > 1 and validation.temperature == 0:
        raise ConfigError(
            f"rollout.val_env_manager.group_size={members}: greedy episodes of one seed are all the same; write 1, or "
            "a sidecar.val_generating_args.temperature above 0"
        )


def _check_sampling(config: Config) -> None:
    if config.sidecar.generating_args.temperature == 0:
        raise ConfigError(
            "sidecar.generating_args.temperature=0: greedy samples carry no policy gradient; "
            "write a temperature above 0 (validation has its own: sidecar.val_generating_args.temperature)"
        )
    for name in ("generating_args", "val_generating_args"):
        temperature, budget = (getattr(config.sidecar, name).temperature, getattr(config.sidecar, name).max_new_tokens)
        if 0 < temperature < _LEAST_TEMPERATURE:
            raise ConfigError(
                f"sidecar.{name}.temperature={temperature}: engines take none between 0 (greedy) and "
                f"{_LEAST_TEMPERATURE}; write at least that"
            )
        if budget is not None and budget > config.model.max_response_tokens:
            raise ConfigError(
                f"sidecar.{name}.max_new_tokens={budget}: above model.max_response_tokens="
                f"{config.model.max_response_tokens}"
            )


def _check_tasks(config: Config) -> None:
    for section, tasksets in _tasksets(config).items():
        for name, taskset in tasksets.items():
            _check_taskset(f"{section}.{name}", taskset)
    if config.tasks.expert.source:
        _check_rows("tasks.expert", config.tasks.expert)
    explores = config.mode in ("both", "train", "explore") and not config.imitates_alone
    if explores and not (config.explored[1] or config.train_groups):
        raise ConfigError(
            "tasks.train: no taskset to train on, and rollout.train_env_manager.tags names no environment either"
        )


def _check_taskset(path: str, taskset: TasksetConfig) -> None:
    if not taskset.source:
        raise ConfigError(f"{path}.source: missing")
    _check_rows(path, taskset)
    if not taskset.rewards:
        raise ConfigError(f"{path}.rewards: at least one reward is needed")
    weights = taskset.reward_weights
    if weights is not None and len(weights) != len(taskset.rewards):
        raise ConfigError(f"{path}.reward_weights: {len(weights)} weights for {len(taskset.rewards)} rewards")


def _check_rows(path: str, rows: RowsConfig) -> None:
    check_path(f"{path}.source", rows.source)
    if "{prompt}" not in rows.template:
        raise ConfigError(f"{path}.template={rows.template!r}: must contain {{prompt}}")
    if len(rows.examples) % 2:
        raise ConfigError(f"{path}.examples: {len(rows.examples)} texts; each prompt needs its answer")


def _check_algorithm(config: Config) -> None:
    algorithm = config.algorithm
    _check_shaping(algorithm, config.model.max_response_tokens)
    found = [*algorithm.functions(), *named_in(config.rollout, "rollout")]
    for one in found:
        if ":" not in one.name and one.name not in all_names(one.slots):
            raise ConfigError(f"{one.key}={one.name!r}: {no_such_name(one.name, one.slots)}")
    for one in found:
        if hasattr(one.keys, "check"):
            one.keys.check(one.group)
    _check_estimator(algorithm)


def _check_moments(config: Config) -> None:
    _check_moment("learner.optimizer", config.learner.optimizer)
    _check_moment("algorithm.critic.optimizer", config.algorithm.critic.optimizer)


def _check_moment(path: str, optimizer: OptimizerConfig) -> None:
    """Refuses a moment that could not fall: bf16 rounds away what changes a number by less than 2**-8 of it."""
    moments = {"mu_dtype": ("beta1", 0.9), "nu_dtype": ("beta2", 0.99)}
    for name, (decay, enough) in moments.items():
        kept = getattr(optimizer, decay)
        if getattr(optimizer, name) == "bf16" and 1 - kept < 2**-8:
            raise ConfigError(
                f"{path}.{name}='bf16': {decay}={kept:g} lets it fall by {1 - kept:.2g} of itself in an update, which "
                f"bf16 rounds away, so that it never would; write {decay}={enough:g} or less, or leave it fp32"
            )


def _check_estimator(algorithm: AlgorithmConfig) -> None:
    """Refuses keys that the chosen estimator gives no meaning to."""
    name, of_tokens = algorithm.adv_estimator, token_advantages.names()
    if algorithm.whiten_rewards and name not in of_tokens:
        raise ConfigError(
            f"algorithm.whiten_rewards=True: adv_estimator={name} sees no rewards of tokens; write norm_std=batch, or "
            f"an adv_estimator of {', '.join(of_tokens)}"
        )
    changed = algorithm.norm_mean, algorithm.norm_std, algorithm.reward_clip, algorithm.overlong == "penalty"
    if "greedy" in advantages.needs(name, algorithm.advantage) and any(changed):
        raise ConfigError(
            f"algorithm.adv_estimator={name!r}: norm_mean, norm_std, reward_clip and overlong=penalty change the "
            "rewards, but not the greedy one that they are compared with; leave them out"
        )


def _check_shaping(algorithm: AlgorithmConfig, max_response_tokens: int) -> None:
    buffer = algorithm.overlong_buffer
    if algorithm.overlong == "penalty" and buffer is None:
        raise ConfigError("algorithm.overlong='penalty': needs overlong_buffer, the tokens in which it grows")
    if buffer is not None and buffer > max_response_tokens:
        raise ConfigError(
            f"algorithm.overlong_buffer={buffer}: above model.max_response_tokens={max_response_tokens}, and even an "
            "empty response would lose something"
        )


def _check_context(config: Config) -> None:
    """Checks the context of the model where its config lies on this disk; others are checked once they are here."""
    file, context = Path(config.model.path) / "config.json", _CONTEXTS.get(config.model.path)
    if os.path.isfile(file):
        try:
            context = json.loads(file.read_text()).get("max_position_embeddings")
        except (OSError, ValueError, AttributeError):
            return  # loading the model reports what is wrong with it
    longest = config.longest
    if isinstance(context, int) and longest > context:
        raise ConfigError(context_error(longest, context))


def context_error(longest: int, context: int) -> str:
    """Returns the message for trajectories of ``longest`` tokens in a model of a shorter ``context``."""
    return (
        f"model.max_prompt_tokens + model.max_response_tokens (or model.sequence_length) = {longest}: more than the "
        f"model's context of {context} tokens; lower it"
    )
