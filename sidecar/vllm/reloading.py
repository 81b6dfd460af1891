"""Helpers of a reload of weights in vLLM: tensors as it takes them, and what it leaves undone on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from sidecar.failpoints import failpoint


def as_torch(array: np.ndarray) -> torch.Tensor:
    """Returns a tensor as vLLM loads it; it shares the memory of an array that is contiguous."""
    failpoint("engine_load")
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":  # numpy's is not torch's, but the bits are
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def have_experts_packed(model: Any) -> None:
    """Has vLLM pack the experts of the next reload as it does those of a first load, where it packs them for a CPU.

    A reload finds their kernel made and takes the weights for packed: log-probabilities are then those of no version at
    all (off by 4.7 nats on a tiny model).
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and module.w13_weight.device.type == "cpu":
            method.moe_kernel = None


def spare_lookups(model: Any) -> None:
    """Has the embeddings that only look up keep no packed copy, and make none at a reload: vLLM packs each for
    products, which nobody asks it for.
    """
    for module in lookups(model):
        method: Any = module.quant_method
        if type(method) is UnquantizedEmbeddingMethod and hasattr(module, "cpu_linear"):
            setattr(method, "process_weights_after_loading", lambda layer: None)  # noqa: B010
            del module.cpu_linear


def lookups(model: Any) -> list[Any]:
    """Returns the embeddings that only look up: where the head is a module of its own, tied or not."""
    if not isinstance(getattr(model, "lm_head", None), ParallelLMHead):
        return []
    return [module for module in model.modules() if type(module) is VocabParallelEmbedding]


def rebuild_head(model: Any) -> None:
    """Repacks the output head where it is tied and vLLM keeps a packed copy of it.

    On a CPU a layerwise reload updates tied embeddings but leaves the head's packed copy as it was: log-probabilities
    are then those of no version at all (off by 0.86 nats on a 135M model). A head of its own it packs itself.
    """
    tied = [module for module in lookups(model) if module.weight is model.lm_head.weight]
    if tied and hasattr(model.lm_head, "cpu_linear"):
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
