"""Frozen weights of an engine, and the adapters that versions put on them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.models.adapter import modules
from rljax.models.common.architecture import Architecture
from rljax.models.common.lora import Adapted
from rljax.models.common.params import Params
from rljax.models.files import stored_tensors
from rljax.models.hf_names import from_hf_by_layer, under_layer
from rljax.sampler import programs
from sidecar.adapters import EVERY, FIRST, SECOND, frozen
from sidecar.channels.versions import AdapterInfo, PublishedVersion
from sidecar.stored import Tensor


class FrozenWeights:
    """Weights below an adapter, on the device once for all versions. They are read when the first version needs them.

    Args:
        model: directory of them; None: no version is an adapter.
        architecture: of the model.
        dtype: of the computation.
        device: where to compute.
    """

    def __init__(self, model: Path | None, architecture: Architecture, dtype: str, device: jax.Device) -> None:
        self._model, self._architecture, self._dtype, self._device = model, architecture, dtype, device
        self._below: tuple[tuple[str, str], Params] | None = None

    def adapted(self, published: PublishedVersion) -> Params:
        """Returns the parameters of the model with a version's adapter on them; the frozen ones are shared by all.

        Raises:
            VersionError: it is an adapter of another model.
            ValueError: it is none of this architecture; or there is no model for it.
        """
        adapter = published.manifest.adapter
        assert adapter is not None
        base, left = self._base(adapter), dict(published.tensors)
        layers = [dict(layer) for layer in base["layers"]]
        for module, key in under_layer(EVERY, modules(self._architecture)).items():
            if f"{module}.{FIRST}" not in left:
                continue
            first, second = (self._factors(f"{module}.{end}", left) for end in (FIRST, SECOND))
            for layer, a, b in zip(layers, first, second, strict=True):
                rows, columns = layer[key].shape
                if (a.shape[0], b.shape) != (rows, (a.shape[1], columns)):
                    raise ValueError(f"factors of {module} are {list(a.shape)} and {list(b.shape)}: not of this model")
                layer[key] = Adapted(layer[key], a, b, scale=adapter.scale)
        if left:
            raise ValueError(f"the adapter has {len(left)} tensors that nothing reads, the first is {min(left)}")
        return {**base, "layers": tuple(layers)}

    def _factors(self, name: str, left: dict[str, Any]) -> tuple[jax.Array, ...]:
        """Returns a factor of each layer, [in, out]."""
        if name not in left or len(left[name]) != self._architecture.num_layers:
            raise ValueError(f"the adapter lacks {name} of {self._architecture.num_layers} layers")
        return _by_layer(jax.device_put(left.pop(name), self._device), dtype=self._dtype)

    def _base(self, adapter: AdapterInfo) -> Params:
        of = (adapter.base, adapter.base_dtype)
        if self._below is None or self._below[0] != of:
            if self._model is None:
                raise ValueError("the version is an adapter, and this engine was given no model to put it on")
            tensors = frozen(adapter, stored_tensors(self._model), str(self._model))
            self._below = of, from_hf_by_layer(tensors, self._architecture, self._read)
        return self._below[1]

    def _read(self, tensor: Tensor, transposed: bool) -> jax.Array:
        return programs.placed(np.asarray(tensor), transposed, dtype=self._dtype, device=self._device)


@functools.partial(jax.jit, static_argnames="dtype")
def _by_layer(stacked: Float[Array, "layers out in"], *, dtype: str) -> tuple[Array, ...]:
    return tuple(factor.T.astype(jnp.dtype(dtype)) for factor in stacked)
