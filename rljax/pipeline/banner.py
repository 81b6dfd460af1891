"""Composes what a process says when it starts: who computes where, with what, and how far ahead."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import jax
import psutil

from rljax.config.engines import ENGINES
from rljax.config.fields import named_explorer, shown
from rljax.config.schema import Config
from rljax.config.validate_placement import (
    device_indices,
    engine_memory_share,
    learner_memory_share,
    shares_gpu_memory,
)
from rljax.learner.learner import Learner
from rljax.learner.sharding import AXES
from rljax.models.common.architecture import Architecture
from rljax.observe.accelerators import attached_accelerators
from rljax.observe.formatting import short
from rljax.pipeline.assemble.devices import engine_devices, engine_gpus, takes_versions_over
from rljax.pipeline.assemble.engines import local_platform
from sidecar.extras import install_command

log = logging.getLogger(__name__)

EXTRAS = {
    "gpu": ("an NVIDIA GPU", "cuda12", " (cuda13 with a driver of 580 or newer)"),
    "tpu": ("a TPU", "tpu", ""),
}
"""Names of the kinds of accelerators, the extra that brings JAX for it, and when it is another."""
UNITS = ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)


def banner(config: Config, root: Path, learner: Learner) -> list[str]:
    """Returns the lines with which a learner starts; ``root`` is the run directory."""
    devices = list(learner.mesh.devices.flat)
    sizes = [f"{axis} {learner.mesh.shape[axis]}" for axis in AXES if learner.mesh.shape[axis] > 1]
    count, frozen = (short(sum(x.size for x in jax.tree.leaves(p))) for p in (learner.state.params, learner.base))
    of = f"{count} parameters" if learner.base is None else f"{count} parameters of adapters on {frozen} frozen ones"
    parts = {
        "run": [str(root), f"mode={config.mode}", f"launcher={config.launcher}"],
        "learner": [
            f"{len(devices)} × {devices[0].device_kind} ({_names(devices)})",
            f"mesh {' × '.join(sizes) or 'of one device'}",
            config.model.dtype,
            f"{of} ({config.model.path})",
            *_of_model(config, learner.architecture),
        ],
        "teachers": [f"{name}: {one.path or one.url}" for name, one in config.algorithm.distill.teachers.items()],
        "memory": _memory(config, learner, devices[0]),
        "engines": _engines(config, devices),
        "batches": [
            f"{config.rollout_batch_size} trajectories in {config.groups_per_batch} groups",
            f"α={config.async_generation_ratio:g}",
            f"S={config.staleness_bound}: no trained token is staler, in steps",
        ]
        if not config.imitates_alone
        else [f"{config.demonstrations_per_batch} demonstrations", "nothing is sampled for training"],
    }
    return _lines(parts)


def explorer_banner(config: Config, root: Path) -> list[str]:
    """Returns the lines with which an explorer in a process of its own starts."""
    return _lines({"run": [str(root), named_explorer(config.explorer.name)], "engines": _engines(config, ())})


def unseen_accelerator(config: Config, platform: str, attached: Collection[str], chosen: str | None) -> str | None:
    """Returns a line on an accelerator that the machine has and JAX does not see; None where all is as it should be.

    Args:
        config: of the run; who names the CPU means it.
        platform: that JAX computes on.
        attached: see `attached_accelerators`.
        chosen: ``JAX_PLATFORMS``; who sets it means it.
    """
    meant = {device_indices(devices)[0] for devices in (config.learner.devices, config.sidecar.devices)} == {"cpu"}
    if platform != "cpu" or not attached or meant or chosen:
        return None
    what, extra, otherwise = EXTRAS[min(attached)]
    return (
        f"this machine has {what} that JAX does not see, and JAX computes on the CPU: "
        f"{install_command(extra)}{otherwise}, or set JAX_PLATFORMS=cpu where that is meant"
    )


def warn_of_unseen_accelerator(config: Config) -> None:
    """Warns of an accelerator of this machine that JAX does not see; starts JAX."""
    unseen = unseen_accelerator(
        config, jax.default_backend(), attached_accelerators(), jax.config.values["jax_platforms"]
    )
    if unseen is not None:
        log.warning("%s", unseen)


def warn_of_unread(config: Config, platform: str) -> None:
    """Warns of keys of accelerators that nothing reads where the learner computes on ``platform``."""
    learner, sidecar = config.learner, config.sidecar
    in_process = ENGINES[sidecar.engine].in_process
    of_gpus = {
        "learner.gpu_memory_utilization": learner.gpu_memory_utilization,
        "learner.autotune": learner.autotune,
        "sidecar.gpu_memory_utilization": sidecar.gpu_memory_utilization
        if ENGINES[sidecar.engine].in_process
        else None,
    }
    given = {} if platform == "gpu" else {key: value for key, value in of_gpus.items() if value is not None}
    if platform == "cpu" and sidecar.colocate and in_process:
        given["sidecar.colocate"] = True
    if given:
        keys = ", ".join(f"{key}={shown(value)}" for key, value in given.items())
        log.warning("%s: of no effect, for the learner computes on a %s", keys, platform.upper())


def _lines(parts: dict[str, list[str]]) -> list[str]:
    return [f"{name:<8} {' · '.join(words)}" for name, words in parts.items() if words]


def _of_model(config: Config, architecture: Architecture) -> Iterator[str]:
    lora, experts = config.model.lora, architecture.experts
    if lora.rank is not None:
        scale = f"alpha {lora.alpha:g}{', rslora' * lora.rslora}"
        yield f"LoRA of rank {lora.rank}, {scale}, {','.join(lora.targets)}"
    if experts is not None:
        replay = f", router_replay={config.algorithm.router_replay}" * config.algorithm.records_routes
        yield f"{experts.count} experts, {experts.per_token} a token{replay}"


def _names(devices: Sequence[jax.Device]) -> str:
    """Returns ``gpu:0-3`` of devices in a row, else ``gpu:0,2``."""
    ids = sorted({device.id for device in devices})
    row = len(ids) > 1 and ids == list(range(ids[0], ids[-1] + 1))
    return f"{devices[0].platform}:{f'{ids[0]}-{ids[-1]}' if row else ','.join(map(str, ids))}"


def _memory(config: Config, learner: Learner, device: jax.Device) -> list[str]:
    arrays = [x for x in jax.tree.leaves((learner.state, learner.base)) if isinstance(x, jax.Array)]
    held = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)
    limit = (device.memory_stats() or {}).get("bytes_limit")
    room = f"{_size(limit)} for JAX" if limit else f"{_size(psutil.virtual_memory().total)} of the machine"
    words = [f"the learner keeps {_size(held)} a device, of {room}"]
    share = learner_memory_share(config)
    if shares_gpu_memory(config):
        words.append(f"of each GPU {share:g} for the learner, {engine_memory_share(config):g} for an engine")
    elif share is not None and device.platform == "gpu":
        words.append(f"{share:g} of each GPU")
    return words


def _engines(config: Config, learners: Sequence[jax.Device]) -> list[str]:
    sidecar = config.sidecar
    if config.mode == "train":
        return ["those of explorers that join", f"weights by {_channel(config)}"]
    return [
        f"{sidecar.num_engines} × {sidecar.engine} {_places(config, learners)}",
        config.engine_dtype,
        f"{sidecar.max_concurrency} requests at once each",
        f"weights by {_channel(config)}",
        *_policy(config),
        *(f"judge {name}: {one.path} on {one.num_engines} × {one.engine}" for name, one in config.asked_judges.items()),
        *(f"reward model {name}: {one.path}, {one.dtype}" for name, one in config.asked_reward_models.items()),
    ]


def _policy(config: Config) -> list[str]:
    policy = config.sidecar.update_policy
    held = f": {config.staleness_bound + 1} versions at once" if policy == "pin" else ""
    return [] if policy == "in_flight" else [f"update_policy={policy}{held}"]


def _channel(config: Config) -> str:
    if config.sync_method == "checkpoint" and not config.sync_deltas and takes_versions_over(config):
        return "memory, and as files for other explorers (sync_method=memory writes none)"
    words = config.sync_method
    if config.resolved_sync_dtype != config.engine_dtype:
        words += f" in {config.resolved_sync_dtype}"
    if config.sync_deltas:
        words += f", up to {config.sync_deltas} in a row as what has changed"
    return words


def _places(config: Config, learners: Sequence[jax.Device]) -> str:
    if config.launcher == "ray":
        return "on the Ray cluster"
    beside = " in another process" if config.explorer.own_process else ""
    if ENGINES[config.sidecar.engine].in_process:
        devices = engine_devices(config)[: config.sidecar.num_engines]
        shared = ", shared with the learner" if set(devices) & set(learners) else ""
        return f"on {_names(devices)}{beside}{shared}"
    if (platform := local_platform(config)) != "gpu":
        return f"on {platform}{beside}"
    gpus = [gpu for index in range(config.sidecar.num_engines) for gpu in engine_gpus(config, index)]
    return f"on GPU {', '.join(gpus)}{beside}{', shared with the learner' if config.sidecar.colocate else ''}"


def _size(count: float) -> str:
    unit, size = next((one for one in UNITS if count >= one[1]), UNITS[-1])
    return f"{count / size:.1f} {unit}"
