"""Resolves the devices that the engines compute on."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import device_indices
from rljax.learner.sharding import named_devices, select_devices


def engine_devices(config: Config) -> list[jax.Device]:
    """Returns the devices that ``sidecar.devices`` names; engine i computes on the i-th, starting over after the last.

    ``auto`` stands for every device of this process, and beside a learner for those that it leaves free. A CPU is
    shared where there is no other.

    Raises:
        ConfigError: a device is not there, or the learner of this process has it too and it is no CPU.
    """
    key, devices = "sidecar.devices", config.sidecar.devices
    named = named_devices(key, devices)
    if config.mode != "both":
        return named
    taken = set(select_devices(config.learner.devices, config.learner.mesh.size))
    free = [device for device in named if device not in taken]
    if devices == "auto" and free:
        return free
    if any(device in taken and device.platform != "cpu" for device in named):
        raise ConfigError(
            f"{key}={devices!r}: the learner has {', '.join(sorted(map(str, taken)))}; an engine needs an accelerator "
            "of its own, or cpu"
        )
    return named


def engine_gpus(config: Config, index: int) -> list[str]:
    """Returns the GPUs of engine number ``index`` in a child process, as ``CUDA_VISIBLE_DEVICES`` names them.

    ``sidecar.devices`` counts those that this process may use, from 0; ``auto`` and ``gpu`` stand for all that a
    learner in this process leaves free. Engines take them in turn, ``tensor_parallel_size`` each.

    Raises:
        ConfigError: the GPUs are not there, or are the learner's.
    """
    sidecar, there = config.sidecar, _visible_gpus()
    what, (_, named) = f"sidecar.devices={sidecar.devices!r}", device_indices(sidecar.devices)
    taken = _learners_gpus(config)
    chosen = sorted(named) if named is not None else [i for i in range(len(there)) if i not in taken]
    if not there or max(chosen, default=0) >= len(there):
        raise ConfigError(f"{what}: this machine has {len(there)} GPUs, counted from 0; correct it, or write cpu")
    if taken & set(chosen):
        raise ConfigError(f"{what}: the learner has {sorted(taken)}; an engine needs a GPU of its own")
    needed = sidecar.num_engines * sidecar.tensor_parallel_size
    if len(chosen) < needed:
        raise ConfigError(
            f"{what}: num_engines × tensor_parallel_size needs {needed} GPUs, and the learner leaves {len(chosen)} of "
            f"{len(there)}; lower one of them"
        )
    return [there[i] for i in chosen[index * sidecar.tensor_parallel_size :][: sidecar.tensor_parallel_size]]


def _visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, found without CUDA, which would take memory of each."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return [name.strip() for name in shown.split(",") if name.strip()]
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _learners_gpus(config: Config) -> set[int]:
    if config.mode != "both":
        return set()
    devices = select_devices(config.learner.devices, config.learner.mesh.size)
    return {device.id for device in devices if device.platform == "gpu"}
