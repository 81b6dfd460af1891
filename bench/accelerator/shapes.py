"""Shapes that are measured: models with random weights, and rows that are packed full.

A row of T places holds three sequences, of 5/8, 2/8 and 1/8 of it. The longest is more than half a row, so that no
shorter row would do; nothing is padding, and every token but the first of a sequence is trained. Both sides get the
same tokens. The three are one group; rewards are 1, 0 and 0. The behaviour's log-probabilities are those of a uniform
policy, which random weights are near to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.accelerator.peaks import parameters
from rljax.models.common.architecture import Architecture

EIGHTHS = (5, 2, 1)
MODELS = {
    # config.json of HuggingFaceTB/SmolLM2-135M, Qwen/Qwen2.5-0.5B and Qwen/Qwen2.5-1.5B
    "SmolLM2-135M": Architecture(
        "llama", 49152, 576, 1536, 30, 9, 3, 64, rope_theta=1e5, rms_eps=1e-5, tie_embeddings=True
    ),
    "Qwen2.5-0.5B": Architecture(
        "qwen2", 151936, 896, 4864, 24, 14, 2, 64, rope_theta=1e6, tie_embeddings=True, attention_bias=True
    ),
    "Qwen2.5-1.5B": Architecture(
        "qwen2", 151936, 1536, 8960, 28, 12, 2, 128, rope_theta=1e6, tie_embeddings=True, attention_bias=True
    ),
    "quick": Architecture("qwen2", 256, 64, 128, 2, 4, 2, 16, tie_embeddings=True, attention_bias=True),
}
LEARNING_RATE = 1e-6
CLIP, MAX_NORM = 0.2, 1.0
SHARE = 0.75
"""Of the memory that an estimate may fill: the rest is for logits, scores, and what torch keeps besides. On an H100 the
estimates of 1.5B without remat were 42.9 and 54.8 GB, and the peaks 43.1 and 55.1.
"""


@dataclass(frozen=True)
class Shape:
    """Tokens and rows that one step trains.

    Attributes:
        model: a name of `MODELS`.
        row: places of a packed row, a multiple of 8.
        tokens: of a step, at least; whole rows.
        microbatch: tokens of a microbatch, at most; at least one row.
        dtype: of the computation, ``bf16`` or ``fp32``.
        steps: that are timed; the median counts.
    """

    model: str
    row: int
    tokens: int
    microbatch: int
    dtype: str
    steps: int

    @property
    def architecture(self) -> Architecture:
        """The model's."""
        return MODELS[self.model]

    @property
    def rows(self) -> int:
        """Rows of a step."""
        return -(-self.tokens // self.row)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Places of each sequence of a row."""
        return tuple(self.row // 8 * part for part in EIGHTHS)

    @property
    def all_sequences(self) -> list[int]:
        """Places of each sequence of a step."""
        return [places for places in self.sequences for _ in range(self.rows)]


@dataclass(frozen=True)
class Way:
    """Settings by which a step fits: whether the backward pass computes layers again, and rows of a microbatch."""

    remat: bool
    rows: int

    def __str__(self) -> str:
        return f"{'remat' if self.remat else 'no remat'}, microbatches of {self.rows} row{'s'[: self.rows > 1]}"


def ways(shape: Shape) -> list[Way]:
    """Returns the ways to try, the fastest first: rows are halved before layers are computed again."""
    most = min(max(shape.microbatch // shape.row, 1), shape.rows)
    halved = [most >> n for n in range(most.bit_length())]
    return [Way(remat, rows) for remat in (False, True) for rows in halved]


def bytes_needed(shape: Shape, way: Way) -> float:
    """Estimates the memory of a step, to begin with a way that may fit; the device has the last word.

    20 bytes a parameter: masters, two moments and summed gradients in float32, weights and gradient in bfloat16. A
    layer keeps its input, or, without remat, what its matrices gave and attention's result.
    """
    a, size = shape.architecture, 4 if shape.dtype == "fp32" else 2
    kept = a.hidden_size
    if not way.remat:
        kept += 2 * a.hidden_size + 2 * (a.num_heads + a.num_kv_heads) * a.head_dim + 2 * a.intermediate_size
    return 20.0 * parameters(a) + float(a.num_layers * kept * size) * way.rows * shape.row


def first_way(shape: Shape, memory: float | None) -> int:
    """Returns the index of the first way that should fit into so many bytes; the last where none should."""
    fits = [memory is None or bytes_needed(shape, way) < SHARE * memory for way in ways(shape)]
    return fits.index(True) if any(fits) else len(fits) - 1


def made_up_tokens(shape: Shape) -> np.ndarray:
    """Returns random tokens, int32 ``[row, token]``: the sequences one after another, each with one token more than it
    has places.
    """
    size = (shape.rows, shape.row + len(EIGHTHS))
    return np.random.default_rng(shape.row).integers(0, shape.architecture.vocab_size, size).astype(np.int32)


def cuts(shape: Shape) -> list[tuple[int, int]]:
    """Returns the first token of each sequence in `made_up_tokens`, and the one after its last."""
    ends = np.cumsum([places + 1 for places in shape.sequences]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def uniform_logprob(shape: Shape) -> float:
    """Returns the log-probability of each token under the uniform policy, in nats."""
    return -math.log(shape.architecture.vocab_size)


def grpo_advantages() -> list[float]:
    """Returns the group's advantages: rewards 1, 0, 0 less their mean, over their deviation (Shao et al. 2024)."""
    rewards = np.array([1.0, 0.0, 0.0])
    found: list[float] = ((rewards - rewards.mean()) / rewards.std(ddof=1)).tolist()
    return found
