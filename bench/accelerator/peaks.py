"""The arithmetic that a step needs, and what a device could do at most: both sides of model FLOPs utilisation (MFU).

MFU (Chowdhery et al. 2022, PaLM, appendix B) = FLOPs that forward and backward pass need / (seconds x peak). What is
computed again (remat) does not count, nor does what a mask hides. A multiplication and an addition are two FLOPs, the
backward pass takes twice the forward pass:

    FLOPs = 6 x (matrix parameters of the layers x tokens + vocabulary x width x trained tokens)
          + 6 x layers x heads x head width x sum over sequences of n (n + 1)

The last term is causal attention: n (n + 1) / 2 pairs in a sequence of n tokens, two products each. Lookup of
embeddings, norms, softmax and optimizer are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rljax.models.common.architecture import Architecture

_NVIDIA = "NVIDIA's datasheet of {}, dense (half of its figure with sparsity where it gives that)"
_GOOGLE = "cloud.google.com/tpu/docs/{}"

PEAKS: tuple[tuple[str, float, str], ...] = (
    (r"H100 PCIe", 756e12, _NVIDIA.format("the H100 PCIe")),
    (r"H100 NVL", 835e12, _NVIDIA.format("the H100 NVL")),
    (r"H100\b", 989.4e12, _NVIDIA.format("the H100 SXM")),
    (r"H200 NVL", 835e12, _NVIDIA.format("the H200 NVL")),
    (r"G?H200\b", 989.4e12, _NVIDIA.format("the H200 SXM and GH200")),
    (r"A100\b", 312e12, _NVIDIA.format("the A100")),
    (r"L40S\b", 362e12, _NVIDIA.format("the L40S")),
    (r"L4\b", 121e12, _NVIDIA.format("the L4")),
    (r"T4\b", 65e12, _NVIDIA.format("the T4") + "; float16, bfloat16 has no units there"),
    (r"V100\b", 125e12, _NVIDIA.format("the V100") + "; float16, bfloat16 has no units there"),
    (r"TPU v4$", 275e12, _GOOGLE.format("v4")),
    (r"TPU v5 ?(lite|e)$", 197e12, _GOOGLE.format("v5e")),
    (r"TPU v5p?$", 459e12, _GOOGLE.format("v5p")),
    (r"TPU v6 ?(lite|e)$", 918e12, _GOOGLE.format("v6e")),
)
"""Pattern of JAX's ``device_kind``, bfloat16 FLOP/s of one device, source. The first that fits counts."""


def peak_of(kind: str) -> tuple[float, str] | None:
    """Returns the peak of a kind of device in FLOP/s and its source; None where it is not known."""
    return next(((flops, source) for pattern, flops, source in PEAKS if re.search(rf"\b{pattern}", kind)), None)


def matrix_parameters(a: Architecture) -> int:
    """Returns the number of weights in the matrices of all layers."""
    heads = a.head_dim * (2 * a.num_heads + 2 * a.num_kv_heads)  # query and output, key and value
    return a.num_layers * a.hidden_size * (heads + 3 * a.intermediate_size)


def parameters(a: Architecture) -> int:
    """Returns the number of weights in all matrices, embedding and head included."""
    return matrix_parameters(a) + a.vocab_size * a.hidden_size * (1 if a.tie_embeddings else 2)


def attention_flops(a: Architecture, sequences: Sequence[int]) -> float:
    """Returns what causal attention of one layer over sequences of so many tokens needs, forward and backward."""
    return 6.0 * a.num_heads * a.head_dim * sum(n * (n + 1) for n in sequences)


def step_flops(a: Architecture, sequences: Sequence[int], trained: int) -> float:
    """Returns what an update over sequences of so many tokens needs, of which ``trained`` have log-probabilities."""
    dense = matrix_parameters(a) * sum(sequences) + a.vocab_size * a.hidden_size * trained
    return 6.0 * dense + a.num_layers * attention_flops(a, sequences)
