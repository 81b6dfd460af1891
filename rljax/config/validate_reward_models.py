"""Validates reward models, and the rewards that ask them (promise P9)."""

from __future__ import annotations

import difflib
from functools import partial

from rljax.config.fields import ConfigError, check_name, check_path
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.reward_models import ASKS_REWARD_MODELS
from rljax.config.schema import Config, TasksetConfig
from rljax.config.validate_placement import device_indices

_WITHOUT_HEAD = ("tiny", "smollm2-135m")


def check_reward_models(config: Config) -> Refusals:
    """Refuses reward models that cannot be had, and rewards that ask none."""
    rules = (_check_model, _check_longest, _check_launcher, _check_rows)
    models = [partial(rule, name) for name in config.reward_models for rule in rules]
    return collected(config, *models, *(partial(_check_asked, section) for section in ("explored", "validation")))


def _check_model(name: str, config: Config) -> Refusals:
    path, model = f"reward_models.{name}", config.reward_models[name].path
    yield from refused_by(check_name, "reward_models.", name, "a reward model's name")
    if not model:
        yield ConfigError(f"{path}.path: missing; write a directory or a hub id")
    elif model in _WITHOUT_HEAD:
        yield ConfigError(f"{path}.path={model!r}: has no head that scores; write a directory or a hub id")
    else:
        yield from refused_by(check_path, f"{path}.path", model)


def _check_longest(name: str, config: Config) -> Refusals:
    longest = config.reward_models[name].max_tokens
    if longest is not None and longest < config.longest:
        yield ConfigError(
            f"reward_models.{name}.max_tokens={longest}: a trajectory may have {config.longest} tokens, and the long "
            "ones would be dropped; write that and room for the chat template, or leave it out"
        )


def _check_launcher(name: str, config: Config) -> Refusals:
    devices = config.reward_models[name].devices
    if device_indices(devices)[1] is not None and config.launcher == "ray":
        yield ConfigError(f"reward_models.{name}.devices={devices!r}: launcher=ray chooses; write auto or cpu")


def _check_rows(name: str, config: Config) -> Refusals:
    path, model = f"reward_models.{name}", config.reward_models[name]
    _, named = device_indices(model.devices)
    if named is not None and model.rows_per_batch % len(named):
        yield ConfigError(
            f"{path}.rows_per_batch={model.rows_per_batch}: must be a multiple of the {len(named)} devices of "
            f"{path}.devices={model.devices!r}"
        )


def _check_asked(which: str, config: Config) -> Refusals:
    """Checks the rewards of one section that ask reward models."""
    section, tasksets = config.explored if which == "explored" else ("tasks.validation", config.tasks.validation)
    models = sorted(config.reward_models)
    for name, taskset in tasksets.items():
        yield from collected(taskset, partial(_check_reward, f"{section}.{name}", models))


def _check_reward(taskset_path: str, models: list[str], taskset: TasksetConfig) -> Refusals:
    if ASKS_REWARD_MODELS not in taskset.rewards:
        return
    path = f"{taskset_path}.reward_args.{ASKS_REWARD_MODELS}.model"
    asked = taskset.reward_args.get(ASKS_REWARD_MODELS, {}).get("model")
    if asked in models:
        return
    near = difflib.get_close_matches(str(asked), models, n=1) or models
    hint = f"did you mean {near[0]}?" if near else f"write reward_models.{asked or 'NAME'}.path=MODEL"
    if asked:
        yield ConfigError(f"{path}={asked!r}: there is no such reward model; {hint}")
    else:
        yield ConfigError(f"{path}: missing; write the name of a reward model, a key of reward_models")
