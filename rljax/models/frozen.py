"""The frozen weights below adapters, on a device once for all in a process that compute with them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike

from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.common.placing import on_device
from rljax.models.hf_names import from_hf_by_layer
from rljax.models.transformer import abstract_params
from sidecar.stored import Tensor


class FrozenWeights:
    """Weights of a model on one device, each layer's by themselves: engines decode with them without copying, and the
    learner of that device alone computes with the same arrays.

    Attributes:
        device: that has them.

    Args:
        architecture: of the model.
        dtype: that it is computed in.
        device: see above.
    """

    def __init__(self, architecture: Architecture, dtype: str, device: jax.Device) -> None:
        self._architecture, self.device = architecture, device
        self._converted = functools.partial(on_device, dtype=dtype, device=device)
        self._held: tuple[tuple[str, str], Params] | None = None
        self._lock = threading.Lock()

    def read(self, tensors: Callable[[], Mapping[str, Tensor]], fingerprint: str, dtype: str) -> Params:
        """Returns the weights, with ``layers`` as a tuple of one tree each. Who asks first has them read.

        Args:
            tensors: returns those of the model, by Hugging Face name.
            fingerprint: of the model that they are.
            dtype: ``fp32`` or ``bf16``: that they are rounded to before all else.
        """
        with self._lock:
            of = fingerprint, dtype
            if self._held is None or self._held[0] != of:
                self._held = None
                self._held = of, from_hf_by_layer(tensors(), self._architecture, self._read)
            return self._held[1]

    def _read(self, tensor: Any, transposed: bool) -> jax.Array:
        return self._converted(np.asarray(tensor), transposed)


def by_key(params: Params) -> Params:
    """Returns parameters as the learner takes them, ``layers`` as one tree with a tuple for every key, of those whose
    ``layers`` are a tuple of trees.
    """
    layers = params["layers"]
    return {**params, "layers": {key: tuple(layer[key] for layer in layers) for key in layers[0]}}


def abstract_frozen(architecture: Architecture, dtype: DTypeLike, device: jax.Device) -> Params:
    """Returns the shapes, dtypes and shardings of what `by_key` makes of `FrozenWeights`."""
    shapes, sharding = abstract_params(architecture), SingleDeviceSharding(device)

    def one(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    found = {key: one(leaf.shape) for key, leaf in shapes.items() if key != "layers"}
    layers = {key: (one(leaf.shape[1:]),) * leaf.shape[0] for key, leaf in shapes["layers"].items()}
    return {**found, "layers": layers}
