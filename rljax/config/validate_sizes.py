"""Validates sizes that must fit each other, and how tokens are sampled (promise P9)."""

from __future__ import annotations

import math
from functools import partial

from rljax.config.engines import ENGINES, kinds_with
from rljax.config.fields import ConfigError
from rljax.config.refusals import Refusals, collected
from rljax.config.schema import Config, JudgeConfig, SidecarConfig

_LEAST_TEMPERATURE = 0.01
"""vLLM samples at this temperature whatever is below: its log-probabilities would not be those of the config's."""


def check_sizes(config: Config) -> Refusals:
    """Refuses batches that are not divided, lengths that have no room, and sampling that cannot be trained or done."""
    batches = (_check_groups, _check_staleness, _check_minibatch, _check_rows)
    lengths = (_check_parts, _check_engine_context, _check_row)
    return collected(config, *batches, *lengths, _check_greedy, _check_generating, _check_penalties, _check_episodes)


def _check_groups(config: Config) -> Refusals:
    batch, group = config.rollout_batch_size, config.group_size
    if batch % group and not config.imitates_alone:
        nearest = max(group, round(batch / group) * group)
        yield ConfigError(
            f"rollout_batch_size={batch}: not a multiple of group_size={group}, and a step trains whole groups; "
            f"nearest that works: {nearest}; or write a group_size that divides {batch}"
        )


def _check_staleness(config: Config) -> Refusals:
    least = math.ceil(config.async_generation_ratio) + config.sync_interval - 1
    if config.max_staleness is not None and config.max_staleness < least:
        yield ConfigError(
            f"max_staleness={config.max_staleness}: async_generation_ratio={config.async_generation_ratio} and "
            f"sync_interval={config.sync_interval} need at least {least} (⌈α⌉ + k − 1)"
        )


def _check_minibatch(config: Config) -> Refusals:
    minibatch, batch = config.algorithm.minibatch_size, config.rollout_batch_size
    if minibatch is not None and (minibatch > batch or batch % minibatch):
        yield ConfigError(f"algorithm.minibatch_size={minibatch}: must divide rollout_batch_size={batch}")


def _check_rows(config: Config) -> Refusals:
    mesh, rows = config.learner.mesh, config.learner.rows_per_microbatch
    shards = mesh.row_shards
    if rows % shards:
        axes = "mesh.data × mesh.fsdp" + " × mesh.expert" * (mesh.expert > 1)
        yield ConfigError(f"learner.rows_per_microbatch={rows}: must be a multiple of {axes} = {shards}")


def _check_parts(config: Config) -> Refusals:
    parts = config.model.max_prompt_tokens + config.model.max_response_tokens
    asked = config.tasks.train or config.tasks.validation or config.tasks.expert.source
    if asked and config.longest < parts:
        yield ConfigError(
            f"model.sequence_length={config.longest}: below model.max_prompt_tokens + model.max_response_tokens = "
            f"{parts}"
        )


def _check_engine_context(config: Config) -> Refusals:
    context = config.sidecar.max_model_len
    if context is not None and context < config.longest:
        yield ConfigError(f"sidecar.max_model_len={context}: {_longest(config.longest)}")


def _check_row(config: Config) -> Refusals:
    row = config.learner.max_tokens_per_row
    if row is not None and row < config.longest:
        yield ConfigError(f"learner.max_tokens_per_row={row}: {_longest(config.longest)}")


def _longest(tokens: int) -> str:
    return (
        f"a trajectory may be {tokens} tokens long (model.sequence_length, or model.max_prompt_tokens + "
        "model.max_response_tokens)"
    )


def _check_greedy(config: Config) -> Refusals:
    if config.sidecar.generating_args.temperature == 0:
        yield ConfigError(
            "sidecar.generating_args.temperature=0: greedy samples carry no policy gradient; "
            "write a temperature above 0 (validation has its own: sidecar.val_generating_args.temperature)"
        )


def _check_generating(config: Config) -> Refusals:
    for name in ("generating_args", "val_generating_args"):
        yield from collected(config, partial(_check_temperature, name), partial(_check_budget, name))


def _check_temperature(name: str, config: Config) -> Refusals:
    temperature = getattr(config.sidecar, name).temperature
    if 0 < temperature < _LEAST_TEMPERATURE:
        yield ConfigError(
            f"sidecar.{name}.temperature={temperature}: engines take none between 0 (greedy) and "
            f"{_LEAST_TEMPERATURE}; write at least that"
        )


def _check_budget(name: str, config: Config) -> Refusals:
    budget, longest = getattr(config.sidecar, name).max_new_tokens, config.model.max_response_tokens
    if budget is not None and budget > longest:
        yield ConfigError(f"sidecar.{name}.max_new_tokens={budget}: above model.max_response_tokens={longest}")


def _check_penalties(config: Config) -> Refusals:
    """Refuses what validation alone may sample with, where training does or the engine cannot."""
    asked = {"sidecar": config.sidecar} | {f"judges.{name}": judge for name, judge in config.judges.items()}
    for name, unset in (("min_p", 0.0), ("repetition_penalty", 1.0)):
        yield from collected(config.sidecar, partial(_check_trained, name, unset))
        for path, engines in asked.items():
            yield from collected(engines, partial(_check_penalty, path, name, unset))


def _check_trained(name: str, unset: float, sidecar: SidecarConfig) -> Refusals:
    if (value := getattr(sidecar.generating_args, name)) != unset:
        yield ConfigError(
            f"sidecar.generating_args.{name}={value}: what is sampled so is not of the policy that is trained; "
            f"leave it out (validation has its own: sidecar.val_generating_args.{name})"
        )


def _check_penalty(path: str, name: str, unset: float, engines: SidecarConfig | JudgeConfig) -> Refusals:
    group = "val_generating_args" if path == "sidecar" else "generating_args"
    value, engine = getattr(getattr(engines, group), name), engines.engine
    if value != unset and not ENGINES[engine].penalises:
        others = f"{path}.engine={kinds_with(penalises=True)}"
        yield ConfigError(
            f"{path}.{group}.{name}={value}: {path}.engine={engine} has none; leave it out, or write {others}"
        )


def _check_episodes(config: Config) -> Refusals:
    members = config.rollout.val_env_manager.group_size
    if members > 1 and config.sidecar.val_generating_args.temperature == 0:
        yield ConfigError(
            f"rollout.val_env_manager.group_size={members}: greedy episodes of one seed are all the same; write 1, or "
            "a sidecar.val_generating_args.temperature above 0"
        )
