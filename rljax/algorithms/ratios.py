"""Probability ratios that are finite whatever the log-probabilities, and their sums over turns and sequences.

This is the one place that decides what becomes of extremes; losses, corrections and KL estimators build on it:

* A log-probability counts as at least −100 (`floored`), about where float32 no longer tells a probability from 0. So
  −inf is a number, the difference of any two is finite, and a token below the floor is a constant without gradient.
* The argument of an exponential is clamped to ±20 (`bounded_exp`), so that ratios lie between 2e-9 and 5e8 and their
  gradient is 0 beyond.

Both are minima and maxima, not selections: a gradient passes no non-finite branch, and a NaN of a broken model stays a
NaN, which the train step sees and refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

if TYPE_CHECKING:
    from rljax.algorithms.inputs import LossInputs

LOWEST = -100.0
BOUND = 20.0


def floored(logprobs: Float[Array, "*shape"], mask: Bool[Array, "*shape"] | bool = True) -> Float[Array, "*shape"]:
    """Log-probabilities in nats, at least −100; 0 where not trained."""
    return jnp.maximum(jnp.where(mask, logprobs, 0.0), LOWEST)


def log_difference(
    new: Float[Array, "*shape"], old: Float[Array, "*shape"], mask: Bool[Array, "*shape"] | bool = True
) -> Float[Array, "*shape"]:
    """log new − log old of two policies' log-probabilities in nats, each floored; 0 where not trained."""
    return floored(new, mask) - floored(old, mask)


def bounded_exp(exponent: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """e^x with x clamped to ±20."""
    return jnp.exp(jnp.clip(exponent, -BOUND, BOUND))


def span_sum(values: Float[Array, "batch time"], inputs: LossInputs, level: str) -> Float[Array, "batch time"]:
    """For each trained token the sum over the trained tokens of its turn or sequence; 0 where not trained.

    Args:
        values: of the tokens.
        inputs: say which tokens are trained, and where turns and sequences end.
        level: "turn": the contiguous response span that the token lies in (ROLL's segment); "sequence": see
            `LossInputs.segment_ids`; "token": the token alone.
    """
    values = jnp.where(inputs.mask, values, 0.0)
    if level == "token":
        return values
    spans = _spans(inputs, level)
    sums = jax.vmap(lambda row, ids: jax.ops.segment_sum(row, ids, row.shape[0] + 1))(values, spans)
    return jnp.where(inputs.mask, jnp.take_along_axis(sums, spans, axis=1), 0.0)


def span_mean(values: Float[Array, "batch time"], inputs: LossInputs, level: str) -> Float[Array, "batch time"]:
    """`span_sum` over the number of tokens that it sums."""
    return span_sum(values, inputs, level) / jnp.maximum(span_sum(jnp.ones_like(values), inputs, level), 1)


def span_ratio(inputs: LossInputs, level: str) -> Float[Array, "batch time"]:
    """ρ = π/π_behaviour of each token, or its geometric mean over the token's turn or sequence; 1 where not trained.

    The gradient flows through the mean, as in Zheng et al. 2025 (GSPO), https://arxiv.org/abs/2507.18071, equation 7.
    """
    return bounded_exp(span_mean(inputs.log_ratio, inputs, level))


def _spans(inputs: LossInputs, level: str) -> Int[Array, "batch time"]:
    """Number of each trained token's turn or sequence within its row, from 1.

    Counted and not read off the ids, which may exceed the row's length. Each trained token is compared with the trained
    one before it, since ids mean nothing elsewhere.
    """
    places = jnp.where(inputs.mask, jnp.arange(inputs.mask.shape[1]), -1)
    last = jax.lax.cummax(places, axis=1)
    before = jnp.pad(last[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    begins = before < 0
    for ids in (inputs.segment_ids, inputs.turn_ids)[: 2 if level == "turn" else 1]:
        begins |= ids != jnp.take_along_axis(ids, jnp.maximum(before, 0), axis=1)
    return jnp.cumsum(inputs.mask & begins, axis=1)
