"""Frozen weights below adapters as a learner of one device holds them, each layer's by themselves: embedded engines of
its process and device compute with the same arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike

from rljax.config.schema import Config
from rljax.models.adapter import publishes_adapter
from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.common.placing import on_device
from rljax.models.hf_names import from_hf_by_layer
from rljax.models.transformer import abstract_params
from sidecar.stored import Tensor


@dataclass(frozen=True)
class FrozenBase:
    """The frozen weights of a learner, for engines.

    Attributes:
        params: as `read_frozen` returns them.
        fingerprint: of the model that they are.
        dtype: that they have, ``fp32`` or ``bf16``.
        device: that they are on.
    """

    params: Params
    fingerprint: str
    dtype: str
    device: jax.Device

    def by_layer(self) -> Params:
        """Returns them with ``layers`` as a tuple of one tree each, as engines compute with them."""
        layers = self.params["layers"]
        each = (dict(zip(layers, arrays, strict=True)) for arrays in zip(*layers.values(), strict=True))
        return {**self.params, "layers": tuple(each)}


def serves_engines(config: Config) -> bool:
    """Returns whether engines of a learner's process and device compute with its frozen weights."""
    return publishes_adapter(config) and config.engine_dtype == config.model.dtype


def read_frozen(
    tensors: Mapping[str, Tensor], architecture: Architecture, dtype: DTypeLike, device: jax.Device
) -> Params:
    """Reads a model onto a device, one tensor after the other.

    Args:
        tensors: by Hugging Face name; see `check_tensors`.
        architecture: of the model.
        dtype: that they get.
        device: that they go to.

    Returns:
        Its parameters, with a tuple of one array a layer for every key of ``layers``.
    """
    placed = functools.partial(on_device, dtype=np.dtype(dtype).name, device=device)

    def read(tensor: Any, transposed: bool) -> jax.Array:
        return placed(np.asarray(tensor), transposed)

    params = from_hf_by_layer(tensors, architecture, read)
    layers = params["layers"]
    return {**params, "layers": {key: tuple(layer[key] for layer in layers) for key in layers[0]}}


def abstract_frozen(architecture: Architecture, dtype: DTypeLike, device: jax.Device) -> Params:
    """Returns the shapes, dtypes and shardings of what `read_frozen` returns."""
    shapes, sharding = abstract_params(architecture), SingleDeviceSharding(device)

    def one(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    found = {key: one(leaf.shape) for key, leaf in shapes.items() if key != "layers"}
    layers = {key: (one(leaf.shape[1:]),) * leaf.shape[0] for key, leaf in shapes["layers"].items()}
    return {**found, "layers": layers}
