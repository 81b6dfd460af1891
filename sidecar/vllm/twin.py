"""A second set of weights of a vLLM model on a CPU: a version is loaded into it between steps, while the first serves
requests, and then the two change places.

vLLM's own reload takes a model's tensors away until it has packed every matrix anew, and nothing can be sampled
meanwhile. Here it reloads a copy of the tree of modules, which has tensors of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import (
    LAYERWISE_INFO,
    _get_original_loader,
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor, to_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import sanitize_layer_refs
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo

from sidecar.vllm import reloading


class Twin:
    """The second set. Used by the thread that steps the engine, as all of the model is."""

    def __init__(self, model: torch.nn.Module, config: Any) -> None:
        """Takes the memory of a second set; ``config`` is vLLM's of a ``model`` that `can_have_twin`."""
        self._config = config
        memo: dict[int, Any] = {}
        reloading.spare_lookups(model)
        self._model = _copied(model, memo)
        with_weights = [one for one in model.modules() if next(one.parameters(recurse=False), None) is not None]
        self._pairs = [(module, memo[id(module)]) for module in with_weights]
        self._version: Mapping[str, np.ndarray] | None = None
        self._left: list[str] = []
        self._complete = True
        self._paused = 0.0

    def load(self, version: Mapping[str, np.ndarray], seconds: float) -> bool:
        """Loads tensors of a version, by Hugging Face name, until so many seconds are over, or as many as it has waited
        since the last part: one at least. So where steps are long, a version takes twice its time, and not many times.

        Returns whether it holds all of the version now.
        """
        begin = time.perf_counter()
        if self._version is not version:
            self._begin(version)
        else:
            seconds = max(seconds, begin - self._paused)
        if self._left:
            self._model.load_weights(self._next(begin + seconds))
        elif not self._complete:
            self._end()
        self._paused = time.perf_counter()
        return self._complete

    def holds(self, version: Mapping[str, np.ndarray]) -> bool:
        """Returns whether it holds all of this very version."""
        return self._version is version and self._complete

    def take_over(self) -> None:
        """Has the model compute with what is held here. What it computed with before is held here then."""
        for module, twin in self._pairs:
            module._parameters, twin._parameters = twin._parameters, module._parameters
            if hasattr(module, "cpu_linear"):  # a matrix that vLLM has packed, in a closure
                module.cpu_linear, twin.cpu_linear = twin.cpu_linear, module.cpu_linear
        self.forget()

    def forget(self) -> None:
        """Lets a version go that is held, or a part of it."""
        self._version = None

    def close(self) -> None:
        """Gives the memory back: what vLLM notes of a module that it loads names that module, and so keeps it."""
        for module in self._model.modules():
            LAYERWISE_INFO.pop(module, None)

    def _begin(self, version: Mapping[str, np.ndarray]) -> None:
        if not self._complete:  # another was given up half done: vLLM puts tensors back, whatever is in them
            finalize_layerwise_reload(self._model, self._config)
        initialize_layerwise_reload(self._model)
        self._version, self._left, self._complete = version, list(version)[::-1], False

    def _next(self, end: float) -> Iterator[tuple[str, torch.Tensor]]:
        assert self._version is not None
        while self._left:
            name = self._left.pop()
            yield name, reloading.as_torch(self._version[name])
            if time.perf_counter() >= end:
                return

    def _end(self) -> None:
        finalize_layerwise_reload(self._model, self._config)
        reloading.rebuild_head(self._model)
        self._complete = True


def can_have_twin(model: torch.nn.Module) -> bool:
    """Returns whether it computes on a CPU, with vectors and matrices alone, neither quantized nor experts'."""
    known = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, type(None))
    methods = (getattr(module, "quant_method", None) for module in model.modules())
    plain = all(parameter.device.type == "cpu" and parameter.ndim <= 2 for parameter in model.parameters())
    return plain and all(type(method) in known for method in methods)


def _copied(of: Any, memo: dict[int, Any]) -> Any:
    """Returns a copy of a module, a parameter or a buffer; what is shared in the model is shared in the copy.
    Parameters have no values yet: a version has all of them.
    """
    if of is None or id(of) in memo:
        return memo.get(id(of))
    if isinstance(of, torch.Tensor):
        memo[id(of)] = copy = materialize_meta_tensor(of)
        if not isinstance(of, torch.nn.Parameter):
            copy.data.copy_(of.data)
        return copy
    memo[id(of)] = copy = object.__new__(type(of))
    copy.__dict__ = dict(of.__dict__)
    copy._non_persistent_buffers_set = set(of._non_persistent_buffers_set)
    for kind in ("_parameters", "_buffers", "_modules"):
        copy.__dict__[kind] = {name: _copied(one, memo) for name, one in getattr(of, kind).items()}
    was = get_layerwise_info(of)
    params, buffers = ({name: _described(one, of) for name, one in kind.items()} for kind in was.restore_metadata)
    LAYERWISE_INFO[copy] = LayerReloadingInfo((params, buffers), was.restore_device)
    return copy


def _described(tensor: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    """Returns how a tensor is loaded, without what vLLM has noted there of the module that it belongs to."""
    copy: Any = to_meta_tensor(tensor)
    if hasattr(copy, "weight_loader"):
        copy.weight_loader = _get_original_loader(copy)
    return sanitize_layer_refs(copy, module)
