"""Sums and means of tokens over their turn or sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.ratios import bounded_exp
from rljax.models.common.ordered import sum_by_stretch


def span_sum(values: Float[Array, "batch time"], inputs: LossInputs, level: str) -> Float[Array, "batch time"]:
    """Sums for each trained token the values of the trained tokens of its turn or sequence; 0 where not trained.

    Args:
        values: of the tokens.
        inputs: say which tokens are trained, and where turns and sequences end.
        level: "turn": the contiguous response span that the token lies in (ROLL's segment); "sequence": see
            `LossInputs.segment_ids`; "token": the token alone.
    """
    values = jnp.where(inputs.mask, values, 0.0)
    if level == "token":
        return values
    return jnp.where(inputs.mask, sum_by_stretch(values, _spans(inputs, level)), 0.0)


def span_mean(values: Float[Array, "batch time"], inputs: LossInputs, level: str) -> Float[Array, "batch time"]:
    """Divides `span_sum` by the number of tokens that it sums."""
    return span_sum(values, inputs, level) / jnp.maximum(span_sum(jnp.ones_like(values), inputs, level), 1)


def span_ratio(inputs: LossInputs, level: str) -> Float[Array, "batch time"]:
    """Returns ρ = π/π_behaviour of each token, or its geometric mean over turn or sequence; 1 where not trained.

    The gradient flows through the mean, as in Zheng et al. 2025 (GSPO), https://arxiv.org/abs/2507.18071, equation 7.
    """
    return bounded_exp(span_mean(inputs.log_ratio, inputs, level))


def _spans(inputs: LossInputs, level: str) -> Int[Array, "batch time"]:
    """Returns the number of each trained token's turn or sequence within its row, from 1.

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
