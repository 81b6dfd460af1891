"""A version of a model as the embedded engine computes with it: made by the learner, and copied by nobody then."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.hf_names import layer_of, layer_to_hf, tensor_shapes, top_to_hf, under_layer


class InLayers(Mapping[str, Any]):
    """Tensors of a learner that may make of them what its engines compute with."""

    @abstractmethod
    def by_layer(self) -> LayeredTensors | None:
        """Returns a copy of the weights of now as an engine on the learner's only device takes them; None where the
        config has none that would compute with just that.
        """


class LayeredTensors(Mapping[str, Any]):
    """A model's tensors by Hugging Face name, each made of the parameters when it is asked for, with those of its
    layer. Any thread.

    Attributes:
        params: the parameters, on one device, with ``layers`` as a tuple of one tree a layer; nobody writes to them.
        shapes: of the tensors, by name.
        dtype: of all of them, numpy's name.
    """

    def __init__(self, params: Params, architecture: Architecture) -> None:
        """Takes parameters of one dtype, laid out as `rljax.models.hf_names.from_hf_by_layer` returns them."""
        self.params, self._architecture = params, architecture
        self.shapes = tensor_shapes(architecture)
        self.dtype = jax.tree.leaves(params)[0].dtype.name
        self._made: tuple[int | None, dict[str, jax.Array]] | None = None

    def on(self, architecture: Architecture, dtype: str, device: jax.Device) -> Params | None:
        """Returns the parameters where an engine of this model, numpy dtype and device computes with just them."""
        there = all(leaf.devices() == {device} for leaf in jax.tree.leaves(self.params))
        return self.params if there and (architecture, dtype) == (self._architecture, self.dtype) else None

    def __getitem__(self, name: str) -> jax.Array:
        layer, made = layer_of(name), self._made
        if made is None or made[0] != layer:
            made = self._made = layer, self._tensors(layer)
        return made[1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def _tensors(self, layer: int | None) -> dict[str, jax.Array]:
        if layer is None:
            return _top({key: array for key, array in self.params.items() if key != "layers"})
        return under_layer(layer, _layer(self.params["layers"][layer], architecture=self._architecture))


@jax.jit
def _top(params: Params) -> dict[str, Any]:
    # Copies: of an accelerator's array JAX keeps what it moves to the host for as long as the array lives.
    return {name: jnp.copy(array) for name, array in top_to_hf(params).items()}


_layer = jax.jit(layer_to_hf, static_argnames="architecture")
