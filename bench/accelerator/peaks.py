"""The arithmetic that a step needs, and what a device could do at most: both sides of model FLOPs utilisation (MFU).
Peaks are those of `rljax.config.chips`.

MFU (Chowdhery et al. 2022, PaLM, appendix B) = FLOPs that forward and backward pass need / (seconds x peak). What is
computed again (remat) does not count, nor does what a mask hides. A multiplication and an addition are two FLOPs, the
backward pass takes twice the forward pass:

    FLOPs = 6 x (matrix parameters of the layers x tokens + vocabulary x width x trained tokens)
          + 6 x layers x heads x head width x sum over sequences of n (n + 1)

The last term is causal attention: n (n + 1) / 2 pairs in a sequence of n tokens, two products each. Lookup of
embeddings, norms, softmax and optimizer are left out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rljax.config.chips import chip_of
from rljax.models.common.architecture import Architecture


def peak_of(kind: str) -> tuple[float, str] | None:
    """Returns the peak of a kind of device in FLOP/s and its source; None where it is not known."""
    chip = chip_of(kind)
    return (chip.flops, chip.source) if chip else None


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


def time_steps(
    step: Callable[[], float], a: Architecture, sequences: Sequence[int], steps: int, opened: float, spawned: float
) -> dict[str, Any]:
    """Returns the row of a learner's steps: the median of so many, after two that do not count.

    Args:
        step: makes an update, waits for it and returns its loss.
        a: of the model.
        sequences: tokens of each that a step trains, all of them.
        steps: that are timed.
        opened: when the learner was ready, in Unix seconds.
        spawned: when its process was started.

    Raises:
        RuntimeError: a loss is not finite.
    """

    def seconds_of_one() -> float:
        begin = time.perf_counter()
        loss = step()
        seconds = time.perf_counter() - begin
        if not math.isfinite(loss):
            raise RuntimeError(f"the loss is {loss}")
        return seconds

    seconds_of_one()
    first = time.time()
    seconds_of_one()  # the first one compiles; the second finds memory where the allocator had it
    seconds = [seconds_of_one() for _ in range(steps)]
    return {
        "tokens": sum(sequences),
        "flops": step_flops(a, sequences, sum(sequences)),
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "ready_seconds": opened - spawned,
        "first_step_seconds": first - spawned,
    }
