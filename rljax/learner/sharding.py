"""Sharding rules: which mesh axis shards which dimension of parameters, optimizer state and batch. Those of activations
are in `rljax.models.common.hardware`.

A rule names one entry per dimension: a mesh axis, several, or None. An entry whose axes do not divide its dimension
evenly is dropped, so that the dimension is replicated: a model with two key-value heads still runs on eight devices.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rljax.config.schema import MeshConfig
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import check_number_named, device_indices
from rljax.models.common.hardware import BATCH, FSDP, GPUS, TABLE, Rule, spec
from rljax.models.common.lora import A, B
from rljax.models.families.registry import FAMILIES

log = logging.getLogger(__name__)

Present = Callable[[str], Sequence[Any]]
"""Returns the devices of a platform: of each, platform and number are read. See `jax_devices`."""
_NOT_THERE = (RuntimeError, AssertionError)  # JAX asserts that a platform of JAX_PLATFORMS is there
AXES = ("data", "fsdp", "sequence", "expert", "tensor")

# Parameters by their last name, but for those that a family alone has (they stand in its file); those of layers have
# the layer as their first dimension. Megatron's pairing over `tensor` (columns, then rows) needs one reduction per
# attention and per MLP.
PARAMETERS: Mapping[str, Rule] = {
    "embedding": TABLE,
    "head": (FSDP, "tensor"),
    "final_norm": (None,),
    "value_head": (None,),
    "attention_norm": (None, None),
    "mlp_norm": (None, None),
    "query": (None, FSDP, "tensor"),
    "key": (None, FSDP, "tensor"),
    "value": (None, FSDP, "tensor"),
    "output": (None, "tensor", FSDP),
    "query_bias": (None, "tensor"),
    "key_bias": (None, "tensor"),
    "value_bias": (None, "tensor"),
    "output_bias": (None, None),
    "gate": (None, FSDP, "tensor"),
    "up": (None, FSDP, "tensor"),
    "down": (None, "tensor", FSDP),
    "gate_bias": (None, "tensor"),
    "up_bias": (None, "tensor"),
    "down_bias": (None, None),
}

BATCH_ROWS: Rule = (None, BATCH, "sequence")


def jax_devices(platform: str) -> Sequence[jax.Device]:
    """Returns the devices of a platform, with ``auto`` of the one that JAX computes on.

    Raises:
        RuntimeError, AssertionError: there are none.
        ConfigError: JAX does not start with what ``JAX_PLATFORMS`` names.
    """
    try:
        return jax.devices() if platform == "auto" else jax.devices(platform)
    except _NOT_THERE:
        if platforms := os.environ.get("JAX_PLATFORMS"):
            _check_platforms(platforms)
        raise


def _check_platforms(platforms: str) -> None:
    try:
        jax.devices()
    except _NOT_THERE as error:
        why, _, _ = str(error).partition(" (set JAX_PLATFORMS")
        reason = f" ({why})" if why else ""
        raise ConfigError(
            f"JAX_PLATFORMS={platforms}: JAX does not start with it on this machine{reason}; unset it, or name what is "
            "here"
        ) from error


def named_devices(key: str, devices: str, present: Present = jax_devices, size: int = 1) -> list[jax.Device]:
    """Returns the devices that ``auto``, ``cpu``, ``cpu:0-3`` or ``gpu:0-3,6`` names.

    Args:
        key: that names them.
        devices: its value.
        present: returns those of a platform: this machine's, or those that a plan is made for.
        size: of a mesh of them.

    Raises:
        ConfigError: the platform or an index is not there, or JAX does not start here.
    """
    platform, indices = device_indices(devices)
    mesh, another = (f", learner.mesh multiplies to {size}", ", and a mesh of as many") if size > 1 else ("", "")
    try:
        there = present(platform)
    except _NOT_THERE as error:
        raise ConfigError(
            f"{key}={devices!r}: this machine has no {platform} ({error}){mesh}; write {_all_there(present)}{another}"
        ) from error
    if indices is not None and max(indices) >= len(there):
        raise ConfigError(
            f"{key}={devices!r}: this machine has {len(there)} ({', '.join(map(str, there))}){mesh}; write others, or "
            f"auto{another}"
        )
    return [d for index, d in enumerate(there) if indices is None or index in indices]


def _all_there(present: Present) -> str:
    """Returns what stands for the devices that there are: cpu where there are no others."""
    try:
        return "cpu" if present("auto")[0].platform == "cpu" else "auto"
    except _NOT_THERE:
        return "cpu"


def select_devices(devices: str, count: int, present: Present = jax_devices) -> list[jax.Device]:
    """Returns the first `count` of the devices that ``learner.devices`` names; see `named_devices`.

    Raises:
        ConfigError: they are not there.
    """
    chosen = named_devices("learner.devices", devices, present, count)
    if len(chosen) < count:
        check_number_named(devices, count)  # a rule of the config's says the same
        hosts = len({device.process_index for device in chosen})
        meant = chosen[0].platform == "cpu" and (hosts > 1 or device_indices(devices)[0] == "cpu")
        more = f", or set JAX_NUM_CPU_DEVICES={-(-count // hosts)} in the environment" if meant else ""
        raise ConfigError(
            f"learner.mesh: multiplies to {count} devices, learner.devices={devices!r} gives {len(chosen)} "
            f"({', '.join(map(str, chosen))}); write a mesh of as many{more}"
        )
    return chosen[:count]


def make_mesh(mesh: MeshConfig, devices: Sequence[jax.Device]) -> Mesh:
    """Makes the learner's mesh over `devices`; those along an axis are near each other, above all along `tensor`.

    Raises:
        ValueError: the number of devices is not the product of the axes.
    """
    shape = tuple(getattr(mesh, axis) for axis in AXES)
    if len(devices) != math.prod(shape):
        raise ValueError(
            f"the mesh {dict(zip(AXES, shape, strict=True))} needs {math.prod(shape)} devices, got {len(devices)}"
        )
    return Mesh(_arranged(shape, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _arranged(shape: tuple[int, ...], devices: Sequence[jax.Device]) -> np.ndarray:
    """Returns devices in the shape of a mesh whose later axes move more: chips by their torus, GPUs host by host."""
    platform = devices[0].platform
    if platform == "tpu":
        for split in (False, True):  # a side of the torus for one axis, before parts of it for several
            with contextlib.suppress(NotImplementedError, AssertionError, ValueError):  # some of a slice's chips
                return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=split)
        log.warning(
            "learner.mesh: its %d chips are no part of the torus that a mesh can follow, and are taken in JAX's order: "
            "what they exchange may cross more links",
            len(devices),
        )
    elif platform in GPUS:
        devices = sorted(devices, key=lambda device: (device.process_index, device.id))
    return np.array(devices).reshape(shape)


def parameter_rules() -> dict[str, Rule]:
    """Returns the rules of `PARAMETERS`, and those of the families' own parameters."""
    rules = dict(PARAMETERS)
    for family in FAMILIES.values():
        rules |= family.sharding
    return rules


def _factor_rule(rule: Rule, factor: str | None) -> Rule:
    """Returns the rule of an adapter's factor by that of its matrix: cut as this is, and the rank is not."""
    if factor is None:
        return rule
    *layers, rows, columns = rule
    return (*layers, rows, None) if factor == A else (*layers, None, columns)


def parameter_shardings(tree: Any, mesh: Mesh) -> Any:
    """Returns the shardings of a tree of parameters, or of optimizer state made of such trees; scalars are replicated.

    Args:
        tree: leaves with a ``shape``; the last name on the way to each is that of its parameter.
        mesh: of the learner.

    Raises:
        ValueError: a parameter has no rule.
    """

    rules = parameter_rules()

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if not leaf.shape:
            return NamedSharding(mesh, P())
        names = [str(getattr(one, "key", one)) for one in path]
        factor = names.pop() if names[-1] in (A, B) else None
        if names[-1] not in rules:
            raise ValueError(
                f"parameter {names[-1]!r} has no sharding rule; add one to its file in rljax/models/families/"
            )
        return NamedSharding(mesh, spec(_factor_rule(rules[names[-1]], factor), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)


def batch_sharding(shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Returns the sharding of ``[slot, row, time]`` arrays: rows over data, fsdp and expert, time over sequence."""
    return NamedSharding(mesh, spec(BATCH_ROWS, shape, mesh))
