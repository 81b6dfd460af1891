"""Builds the reward models that a config asks for: their files, devices and programs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from rljax.config.engines import ENGINES
from rljax.config.fields import ConfigError, user_path
from rljax.config.schema import Config, MeshConfig, ModelConfig
from rljax.config.validate_placement import device_indices
from rljax.learner.sharding import (
    Present,
    jax_devices,
    make_mesh,
    named_devices,
    parameter_shardings,
    select_devices,
)
from rljax.models.common.hardware import Hardware
from rljax.models.resolve import ModelNotFound, resolve_model
from rljax.models.reward_model import StoredRewardModel, load_score, open_reward_model
from rljax.models.tokenizer import load_tokenizer
from rljax.models.transformer import abstract_params
from rljax.pipeline.assemble.devices import device_name, named_names
from rljax.pipeline.assemble.engines import COMPUTE_DTYPES, pool_devices
from rljax.pipeline.assemble.judges import Place
from rljax.rollout.async_utils import in_background
from rljax.rollout.reward_model import RewardModel

TEMPLATE_TOKENS = 256
"""Room for what a chat template adds to the longest trajectory."""


class RewardModels(contextlib.ExitStack):
    """The reward models of one process. Leaving the context ends them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config

    async def open(self, judges: Mapping[str, Place]) -> Mapping[str, RewardModel]:
        """Loads all reward models, one after the other, and compiles their programs; returns them by name. They keep
        off the places of ``judges``.

        Raises:
            ModelNotFound: a model is not here and cannot be fetched.
            ConfigError: it is no reward model, or its devices are not there or taken.
        """
        opened, places = {}, devices_of_reward_models(self._config, judges)
        for name in self._config.asked_reward_models:
            # it may be a download: meanwhile heartbeats go on, and who leaves does not wait for its end
            made = await in_background(functools.partial(_load, self._config, name, places[name]))
            opened[name] = self.enter_context(contextlib.closing(made))
        return opened


def check_reward_models(config: Config) -> None:
    """Looks at the files of reward models that are on this machine; those of the hub are fetched when they are opened.

    Raises:
        ConfigError: one is no reward model, or reads fewer tokens than it is to be given.
    """
    for name, model in config.asked_reward_models.items():
        with _naming(name):
            if (directory := user_path(model.path)).is_dir():
                _stored(config, name, directory)


def longest_row(config: Config, name: str, positions: int) -> int:
    """Returns the most tokens of a row of a reward model that reads ``positions`` of them.

    Raises:
        ConfigError: it reads fewer than it is to be given, or than a trajectory may have.
    """
    asked = config.reward_models[name].max_tokens
    if asked is not None and asked > positions:
        raise ConfigError(f"max_tokens={asked}: the model reads at most {positions}; lower it")
    if config.longest > positions:
        raise ConfigError(f"the model reads at most {positions} tokens, and a trajectory may have {config.longest}")
    return asked or min(config.longest + TEMPLATE_TOKENS, positions)


def _stored(config: Config, name: str, directory: Path) -> tuple[StoredRewardModel, int]:
    stored = open_reward_model(directory)
    longest = longest_row(config, name, stored.architecture.max_position_embeddings)
    return replace(stored, architecture=stored.architecture.within(longest)), longest


def _load(config: Config, name: str, devices: Sequence[jax.Device]) -> RewardModel:
    settings = config.reward_models[name]
    with _naming(name):
        directory = resolve_model(ModelConfig(path=settings.path), config.seed, Path())
        (stored, longest), tokenizer = _stored(config, name, directory), load_tokenizer(directory)
        mesh = make_mesh(MeshConfig(fsdp=len(devices)), devices)
        shardings = parameter_shardings(abstract_params(stored.architecture), mesh)
        score = load_score(stored, shardings, COMPUTE_DTYPES[settings.dtype], Hardware.of(mesh))
        model = RewardModel(name, longest, settings.rows_per_batch, tokenizer, stored.pad_token_id, score)
        model.start()
        return model


def devices_of_reward_models(config: Config, judges: Mapping[str, Place]) -> dict[str, list[jax.Device]]:
    """Returns the devices of each reward model of this process, which has judges in these places.

    Raises:
        ConfigError: they are not there, or others have them.
    """
    if not config.asked_reward_models:
        return {}
    engines, learners, shared = pool_devices(config), list[jax.Device](), list[jax.Device]()
    if config.mode == "both":
        learners = select_devices(config.learner.devices, config.learner.mesh.size)
    if learners and not config.explorer.own_process:
        shared = learners
    elif ENGINES[config.sidecar.engine].in_process and config.launcher == "local":
        shared = [d for d in named_devices("sidecar.devices", config.sidecar.devices) if _name(d) in engines]
    others = engines.union(named_names(config.learner.devices), map(_name, learners))
    others = others.union(*(place.devices for place in judges.values()))
    return place_reward_models(config, shared, others, jax_devices)


def place_reward_models(
    config: Config, shared: Sequence[Any], others: frozenset[str], present: Present
) -> dict[str, list[Any]]:
    """Returns the devices of each reward model. Named ones are its own, or one of those that are ``shared``; ``auto``
    is one that nobody has, or else one that is shared.

    Args:
        config: of the run.
        shared: what the learner, or embedded engines, compute on in the same process.
        others: names of the devices that engines have.
        present: returns the devices of a platform: this machine's, or those that a plan is made for.

    Raises:
        ConfigError: they are not there, or others have them.
    """
    found: dict[str, list[Any]] = {}
    named = [named_names(model.devices) for model in config.asked_reward_models.values()]
    for name, model in config.asked_reward_models.items():
        key = f"reward_models.{name}.devices"
        there = named_devices(key, model.devices, present)
        platform, indices = device_indices(model.devices)
        if indices is not None:
            _check_named(f"{key}={model.devices!r}", there, frozenset(map(_name, shared)), others)
            found[name] = there
            continue
        taken = others.union(map(_name, [*shared, *(d for devices in found.values() for d in devices)]), *named)
        free = [device for device in there if _name(device) not in taken and config.launcher == "local"]
        mine = [device for device in shared if platform in ("auto", device.platform)]
        by_ray = config.launcher == "ray" and platform == "auto"
        last = named_devices(key, "cpu", present) if by_ray or there[0].platform == "cpu" else []
        if not (free or mine or last):
            raise ConfigError(f"{key}={model.devices!r}: learner, engines and judges leave none; write cpu")
        found[name] = (free or mine or last)[:1]
    return found


def _check_named(what: str, devices: Sequence[Any], shared: frozenset[str], others: frozenset[str]) -> None:
    names = set(map(_name, devices))
    if (taken := sorted(names & others - shared)) and devices[0].platform != "cpu":
        raise ConfigError(f"{what}: others have {', '.join(taken)}; write what they leave, or auto")
    if len(names) > 1 and names & shared:
        # programs of two threads, each over several devices, could wait for each other for ever
        raise ConfigError(f"{what}: {min(names & shared)} is shared; of several devices all must be its own")


def _name(device: Any) -> str:
    return device_name(device.platform, device.id)


@contextlib.contextmanager
def _naming(model: str) -> Iterator[None]:
    try:
        yield
    except ModelNotFound as error:
        raise ModelNotFound(f"reward_models.{model}: {error}") from None
    except ValueError as error:  # a ConfigError, or what the files of a model are refused with
        raise ConfigError(f"reward_models.{model}: {error}") from None
