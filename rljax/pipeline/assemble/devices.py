"""Resolves the devices that the engines compute on, and what of a GPU's memory this process takes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import jax
from jax._src.xla_bridge import backends_are_initialized  # there is no public way to ask without starting them

from rljax.config.engines import ENGINES
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import (
    device_indices,
    engine_memory_share,
    learner_memory_share,
    shares_gpu_memory,
)
from rljax.learner.export import hands_over, has_engines_beside
from rljax.learner.sharding import Present, jax_devices, named_devices, select_devices

MEMORY_SHARE, FORMER_MEMORY_SHARE = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""Environment variables: the share of each GPU's memory that JAX takes, read once, when it starts. It refuses both."""
JAX_MEMORY_SHARE = 0.75
"""Share where the config names none."""


def share_gpu_memory(config: Config) -> None:
    """Sets the share of each GPU's memory that JAX will take in this process, where the config names one.

    Raises:
        ConfigError: JAX has started already, with another share.
    """
    if config.mode == "explore" or (config.mode == "serve" and ENGINES[config.sidecar.engine].in_process):
        of_engine = shares_gpu_memory(config) and ENGINES[config.sidecar.engine].in_process
        key, share = "sidecar", engine_memory_share(config) if of_engine else None
    else:
        key, share = "learner", learner_memory_share(config)
    if share is None or os.environ.get(MEMORY_SHARE) == f"{share:g}":
        return
    if backends_are_initialized():
        raise ConfigError(
            f"{key}.gpu_memory_utilization={share:g}: JAX has started in this process, and keeps what it took then; "
            f"begin in a new one, or set {MEMORY_SHARE}={share:g} before JAX is used"
        )
    os.environ.pop(FORMER_MEMORY_SHARE, None)
    os.environ[MEMORY_SHARE] = f"{share:g}"


def jax_memory_share() -> float:
    """Returns the share of each GPU's memory that JAX takes in this process, as far as no config names one."""
    said = os.environ.get(MEMORY_SHARE) or os.environ.get(FORMER_MEMORY_SHARE)
    return float(said) if said else JAX_MEMORY_SHARE


def check_shared(config: Config, devices: Sequence[jax.Device]) -> None:
    """Checks that processes which share the memory of ``devices`` can: it can be divided on GPUs alone.

    Raises:
        ConfigError: the config asks for it, and a device is no GPU.
    """
    others = sorted({device.platform for device in devices} - {"gpu"})
    if others and shares_gpu_memory(config):
        raise ConfigError(
            f"sidecar.colocate=true: processes can share a GPU, by a part of its memory for each, and JAX has "
            f"{', '.join(others)} here; leave it out, or install JAX for the GPU"
        )


def engine_devices(config: Config, present: Present = jax_devices) -> list[jax.Device]:
    """Returns the devices that ``sidecar.devices`` names; engine i computes on the i-th, starting over after the last.

    ``auto`` stands for every device of this process, and beside a learner for those that it leaves free; where there
    is only one, learner and engines of this process share it. ``colocate`` shares all that the learner has.

    Raises:
        ConfigError: a device is not there, or is or is not the learner's as it should be.
    """
    key, devices = "sidecar.devices", config.sidecar.devices
    named = named_devices(key, devices, present)
    if config.learner.hosts.number > 1 and config.mode == "both" and present is jax_devices:  # JAX counts all hosts'
        named = [device for device in named if device.process_index == jax.process_index()]
    if config.mode != "both":
        check_shared(config, named)
        return named
    taken = select_devices(config.learner.devices, config.learner.mesh.size, present)
    learners = f"the learner has {', '.join(sorted(map(str, taken)))}"
    if config.sidecar.colocate:
        check_shared(config, taken)
        shared = [device for device in named if device in taken]
        if not shared or (devices != "auto" and len(shared) < len(named)):
            raise ConfigError(f"{key}={devices!r}: with colocate=true engines use what {learners}; write auto")
        return shared
    free = [device for device in named if device not in taken]
    if devices == "auto" and free:
        return free
    alone = devices == "auto" and len(named) == 1 and not config.explorer.own_process
    if not alone and any(device in taken and device.platform != "cpu" for device in named):
        advice = "of its own, or cpu; or write sidecar.colocate=true"
        raise ConfigError(f"{key}={devices!r}: {learners}; an engine needs an accelerator {advice}")
    return named


def check_deltas(config: Config, present: Present = jax_devices) -> None:
    """Checks that versions are written as what has changed only where engines read them.

    Raises:
        ConfigError: engines share the learner's only accelerator, which hands them whole versions.
    """
    if config.sync_deltas and shares_only_accelerator(config, present):
        raise ConfigError(
            f"sync_deltas={config.sync_deltas}: on the learner's only accelerator engines are handed whole versions; "
            "leave it out"
        )


def shares_only_accelerator(config: Config, present: Present = jax_devices) -> bool:
    """Returns whether the engines are threads of the learner's process on its only device, which is no CPU."""
    return any(device.platform != "cpu" for device in _shared(config, present))


def adopts_versions(config: Config, present: Present = jax_devices) -> bool:
    """Returns whether the engines compute with the very arrays that the learner's only device has of a version."""
    return hands_over(config) and bool(_shared(config, present))


def takes_versions_over(config: Config, present: Present = jax_devices) -> bool:
    """Returns whether the engines take a version as the learner's only device has it: those that adopt it, and on an
    accelerator any.
    """
    return adopts_versions(config, present) or shares_only_accelerator(config, present)


def _shared(config: Config, present: Present) -> list[jax.Device]:
    """Returns the learner's only device where its engines are threads of its process on just that; else none."""
    if not has_engines_beside(config):
        return []
    learners = select_devices(config.learner.devices, 1, present)
    return learners if set(engine_devices(config, present)) == set(learners) else []


def engine_gpus(config: Config, index: int, taken: frozenset[str] = frozenset()) -> list[str]:
    """Returns the GPUs of engine number ``index`` in a child process, as ``CUDA_VISIBLE_DEVICES`` names them.

    See `pool_gpus`, of which engines take ``tensor_parallel_size`` each, in turn.
    """
    there, size = _visible_gpus(), config.sidecar.tensor_parallel_size
    return [there[i] for i in pool_gpus(config, taken, len(there))[index * size :][:size]]


def pool_gpus(
    config: Config, taken: frozenset[str] = frozenset(), count: int | None = None, present: Present = jax_devices
) -> list[int]:
    """Returns the GPUs of all engines in child processes, counted from 0 over those that this process may use.

    ``auto`` and ``gpu`` stand for all that a learner in this process leaves free, but for those ``taken``
    (`device_name`), which other engines have; with ``colocate`` for those that the learner has. There are ``count``;
    None: as many as this machine has.

    Raises:
        ConfigError: the GPUs are not there, or are or are not the learner's as they should be.
    """
    sidecar, count = config.sidecar, len(_visible_gpus()) if count is None else count
    what, (_, named) = f"sidecar.devices={sidecar.devices!r}", device_indices(sidecar.devices)
    if not count or max(named or (0,)) >= count:
        raise ConfigError(f"{what}: this machine has {count} GPUs, counted from 0; correct it, or write cpu")
    learners, colocate = _learners_gpus(config, present), sidecar.colocate and config.mode == "both"
    usable = [i for i in range(count) if config.mode != "both" or (i in learners) == colocate]
    chosen = usable if named is None else sorted(named)
    if not colocate and learners & set(chosen):
        left = [str(i) for i in range(count) if i not in chosen][: len(learners)]
        moved = f"; or write learner.devices=gpu:{','.join(left)}" * (len(left) == len(learners))
        raise ConfigError(
            f"{what}: the learner has {sorted(learners)}; an engine needs a GPU of its own, or sidecar.colocate=true"
            f"{moved}"
        )
    if colocate and not learners.issuperset(chosen):
        raise ConfigError(
            f"{what}: with colocate=true engines use what the learner has, {sorted(learners)}; write auto"
        )
    if named is None:
        chosen = [i for i in chosen if device_name("gpu", i) not in taken]
    needed = sidecar.num_engines * sidecar.tensor_parallel_size
    if len(chosen) < needed:
        raise ConfigError(
            f"{what}: num_engines × tensor_parallel_size needs {needed} GPUs, and the learner "
            f"{'has' if colocate else 'and others leave' if taken else 'leaves'} {len(chosen)} of {count}; lower "
            "one of them" + ("" if colocate else ", or write sidecar.colocate=true")
        )
    return chosen[:needed]


def device_name(platform: str, index: int) -> str:
    """Returns the name of a device, as the config writes it: ``gpu:0``."""
    return f"{platform}:{index}"


def named_names(devices: str) -> frozenset[str]:
    """Returns the names of the devices that ``gpu:0-3,6`` names; none of ``auto`` or ``gpu``, which name no index."""
    platform, indices = device_indices(devices)
    return frozenset(device_name(platform, i) for i in indices or ())


def _visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, found without CUDA, which would take memory of each."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        names = (name.strip() for name in shown.split(","))
        return list(itertools.takewhile(lambda name: name and name != "-1", names))  # CUDA stops at what is none
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _learners_gpus(config: Config, present: Present) -> set[int]:
    if config.mode != "both":
        return set()
    devices = select_devices(config.learner.devices, config.learner.mesh.size, present)
    return {device.id for device in devices if device.platform == "gpu"}
