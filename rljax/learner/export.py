"""Export of the weights, a layer at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rljax.config.engines import ENGINES
from rljax.config.model import LoraConfig
from rljax.config.schema import Config
from rljax.learner.objective import DTYPES
from rljax.learner.programs import Program
from rljax.models.adapter import adapter_by_name, publishes_adapter, stacked_names
from rljax.models.common.architecture import Architecture
from rljax.models.common.lora import merged_layer
from rljax.models.common.params import Params
from rljax.models.common.placing import readable
from rljax.models.hf_names import layer_of, layer_to_hf, tensor_shapes, top_to_hf, under_layer
from rljax.models.layered import InLayers, LayeredTensors
from sidecar.channels.versions import AdapterInfo

Exports = tuple[Any, Any]
"""Jitted functions: of the parameters, for the tensors outside of the layers; of the stacked layers and a number."""


class ExportedWeights(InLayers):
    """Weights by Hugging Face name, in the order of the layers. Each layer is made when a tensor of it is asked for,
    with the next, which the devices compute meanwhile, and others are let go: who takes them in order, and keeps none,
    needs room for two.

    They are those of the moment in which they are read: read them before the next update, which reuses the memory of
    the state. What was read, training never touches.
    """

    def __init__(
        self,
        params: Params,
        names: Mapping[str, int | None],
        layers: int,
        exports: Exports,
        by_layer: Callable[[], LayeredTensors | None] = lambda: None,
    ) -> None:
        """Takes parameters of so many layers, the layer of each tensor by its name (None: outside of them), what
        `make_export` or `make_adapter_export` made for the dtype, and what `by_layer` is to do.
        """
        self.before: Callable[[int | None], None] = lambda layer: None
        """Called with a layer before it is made; None: what is outside of the layers."""
        self._params = params
        self._names = names
        self._top, self._one_layer = exports
        self._last, self._by_layer = layers - 1, by_layer
        self._made: dict[int | None, dict[str, jax.Array]] = {}

    def __getitem__(self, name: str) -> jax.Array:
        layer = self._names[name]
        following = 0 if layer is None else min(layer + 1, self._last)
        near = (layer, following) if self._last >= 0 else (layer,)
        self._made = {kept: self._made[kept] for kept in near if kept in self._made}
        for wanted in near:
            if wanted not in self._made:
                self.before(wanted)
                self._made[wanted] = self.make(wanted)
        return self._made[layer][name]

    @property
    def units(self) -> dict[int | None, list[str]]:
        """Names of the tensors that are made together, by their layer, in the order in which they are."""
        found: dict[int | None, list[str]] = {}
        for name, layer in self._names.items():
            found.setdefault(layer, []).append(name)
        return found

    def make(self, layer: int | None) -> dict[str, jax.Array]:
        """Returns the tensors of a layer, or with None those outside of the layers, as this process can read them."""
        if layer is None:
            return dict(readable(self._top(self._params)))
        return under_layer(layer, readable(self._one_layer(self._params["layers"], layer)))

    def by_layer(self) -> LayeredTensors | None:
        """See `InLayers.by_layer`."""
        return self._by_layer()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def has_engines_beside(config: Config) -> bool:
    """Returns whether there are engines, as threads of the learner's process, which has one device."""
    in_threads = ENGINES[config.sidecar.engine].in_process and config.launcher == "local"
    together = config.mode == "both" and in_threads and not config.explorer.own_process
    return together and config.asks_engines and config.learner.mesh.size == 1


def hands_over(config: Config) -> bool:
    """Returns whether engines that have the learner's only device compute with just what it publishes: they are threads
    of its process, in the dtype of the versions, which are whole models.
    """
    whole = config.sync_method != "nccl" and not config.sync_deltas and not publishes_adapter(config)
    return has_engines_beside(config) and whole and config.resolved_sync_dtype == config.engine_dtype


class Exporter:
    """Makes the tensors of versions: of a model's weights, or of the factors of an adapter alone."""

    def __init__(self, config: Config, architecture: Architecture) -> None:
        """Makes no program before it is needed."""
        self._adapter, self._model, self._lora = publishes_adapter(config), config.model, config.model.lora
        self._architecture, self._hands_over = architecture, hands_over(config)
        self._exports: dict[str, Exports] = {}
        self._layered: dict[str, Exports] = {}

    def tensors(self, params: Params, trained: Params, dtype: str) -> ExportedWeights:
        """Returns the tensors of a version in a dtype, ``fp32`` or ``bf16``, of all parameters of the model and of what
        is trained.
        """
        names: dict[str, int | None] = {name: layer_of(name) for name in tensor_shapes(self._architecture)}
        if not self._adapter:
            by_layer = functools.partial(self._by_layer, params, dtype)
            return ExportedWeights(params, names, self._architecture.num_layers, self._in(dtype), by_layer)
        return ExportedWeights(
            trained, dict.fromkeys(stacked_names(self._architecture, self._lora)), 0, self._in(dtype)
        )

    def adapter_info(self, base: str | None) -> AdapterInfo | None:
        """Returns what a version says of an adapter, by the fingerprint of the frozen weights; None of a whole model.

        Raises:
            ValueError: the frozen weights are not loaded.
        """
        if not self._adapter:
            return None
        if base is None:
            raise ValueError("the frozen weights below the adapter are not loaded yet")
        return AdapterInfo(base, self._model.dtype, self._lora.scale)

    def programs(self, params: Params, trained: Params, dtype: str) -> list[Program]:
        """Returns the programs by which `tensors` makes them, for engines in this process by layer."""
        top, one_layer = self._in_layers(dtype) if self._hands_over else self._in(dtype)
        if self._adapter:
            return [Program("export", top, (trained,), publishes=True)]
        layer = Program("export of a layer", one_layer, (params["layers"], 0), publishes=True)
        return [Program("export", top, (params,), publishes=True), layer]

    def _by_layer(self, params: Params, dtype: str) -> LayeredTensors | None:
        if not self._hands_over:
            return None
        top, one_layer = self._in_layers(dtype)
        made = top(params)  # first: the embedding is the largest
        made["layers"] = tuple(one_layer(params["layers"], layer) for layer in range(self._architecture.num_layers))
        # of the learner's mesh of one device its engine, which knows no mesh, takes the device's own array
        here = jax.tree.map(lambda x: x.addressable_data(0), made)
        return LayeredTensors(jax.block_until_ready(here), self._architecture)

    def _in_layers(self, dtype: str) -> Exports:
        if dtype not in self._layered:
            self._layered[dtype] = make_layered_export(DTYPES[dtype])
        return self._layered[dtype]

    def _in(self, dtype: str) -> Exports:
        if dtype not in self._exports:
            a, made = self._architecture, DTYPES[dtype]
            self._exports[dtype] = make_adapter_export(a, self._lora, made) if self._adapter else make_export(a, made)
        return self._exports[dtype]


def make_export(architecture: Architecture, dtype: Any) -> Exports:
    """Makes the functions that return the tensors outside of the layers, and those of one layer, as `dtype` arrays that
    training never touches. One small program serves all layers, however many there are. Adapters are merged.
    """

    # jit hands an output that is an input through as it is, and training would donate it: hence the copy.
    @jax.jit
    def top(params: Params) -> dict[str, Array]:
        return {name: jnp.copy(x).astype(dtype) for name, x in top_to_hf(params).items()}

    @jax.jit
    def one_layer(layers: Params, layer: Array) -> dict[str, Array]:
        tensors = layer_to_hf(merged_layer(layers, layer), architecture)
        return {name: x.astype(dtype) for name, x in tensors.items()}

    return top, one_layer


def make_layered_export(dtype: Any) -> Exports:
    """Makes what `make_export` does, of parameters as an engine in this process computes with them."""

    @jax.jit
    def top(params: Params) -> Params:
        return {key: jnp.copy(x).astype(dtype) for key, x in params.items() if key != "layers"}

    @jax.jit
    def one_layer(layers: Params, layer: Array) -> Params:
        return {key: x.astype(dtype) for key, x in merged_layer(layers, layer).items()}

    return top, one_layer


def make_adapter_export(architecture: Architecture, lora: LoraConfig, dtype: Any) -> Exports:
    """Makes what `make_export` does of an adapter: one program makes all, which is little."""

    @jax.jit
    def top(trained: Params) -> dict[str, Array]:
        return {name: x.astype(dtype) for name, x in adapter_by_name(trained, architecture, lora).items()}

    return top, lambda layers, layer: {}
