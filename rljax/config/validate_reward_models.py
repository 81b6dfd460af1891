"""Validates reward models, and the rewards that ask them (promise P9)."""

from __future__ import annotations

import difflib

from rljax.config.fields import ConfigError, check_name, check_path
from rljax.config.reward_models import ASKS_REWARD_MODELS, RewardModelConfig
from rljax.config.schema import Config
from rljax.config.validate_placement import check_device_names, device_indices

_WITHOUT_HEAD = ("tiny", "smollm2-135m")


def check_reward_models(config: Config) -> None:
    """Refuses reward models that cannot be had, and rewards that ask none.

    Raises:
        ConfigError: on the first one.
    """
    for name, model in config.reward_models.items():
        _check_model(config, name, model)
    for section, tasksets in (config.explored, ("tasks.validation", config.tasks.validation)):
        for name, taskset in tasksets.items():
            if ASKS_REWARD_MODELS in taskset.rewards:
                asked = taskset.reward_args.get(ASKS_REWARD_MODELS, {}).get("model")
                _check_asked(
                    f"{section}.{name}.reward_args.{ASKS_REWARD_MODELS}.model", asked, sorted(config.reward_models)
                )


def _check_model(config: Config, name: str, model: RewardModelConfig) -> None:
    path = f"reward_models.{name}"
    check_name("reward_models.", name, "a reward model's name")
    if not model.path:
        raise ConfigError(f"{path}.path: missing; write a directory or a hub id")
    if model.path in _WITHOUT_HEAD:
        raise ConfigError(f"{path}.path={model.path!r}: has no head that scores; write a directory or a hub id")
    check_path(f"{path}.path", model.path)
    if model.max_tokens is not None and model.max_tokens < config.longest:
        raise ConfigError(
            f"{path}.max_tokens={model.max_tokens}: a trajectory may have {config.longest} tokens, and the long ones "
            "would be dropped; write that and room for the chat template, or leave it out"
        )
    check_device_names(f"{path}.devices", model.devices)
    _, named = device_indices(model.devices)
    if named is not None and config.launcher == "ray":
        raise ConfigError(f"{path}.devices={model.devices!r}: launcher=ray chooses; write auto or cpu")
    if named is not None and model.rows_per_batch % len(named):
        raise ConfigError(
            f"{path}.rows_per_batch={model.rows_per_batch}: must be a multiple of the {len(named)} devices of "
            f"{path}.devices={model.devices!r}"
        )


def _check_asked(path: str, asked: object, models: list[str]) -> None:
    if asked in models:
        return
    near = difflib.get_close_matches(str(asked), models, n=1) or models
    hint = f"did you mean {near[0]}?" if near else f"write reward_models.{asked or 'NAME'}.path=MODEL"
    if not asked:
        raise ConfigError(f"{path}: missing; write the name of a reward model, a key of reward_models")
    raise ConfigError(f"{path}={asked!r}: there is no such reward model; {hint}")
