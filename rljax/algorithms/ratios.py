"""Probability ratios that are finite whatever the log-probabilities.

This is the one place that decides what becomes of extremes; losses, corrections and KL estimators build on it:

* A log-probability counts as at least −100 (`floored`), about where float32 no longer tells a probability from 0. So
  −inf is a number, the difference of any two is finite, and a token below the floor is a constant without gradient.
* The argument of an exponential is clamped to ±20 (`bounded_exp`), so that ratios lie between 2e-9 and 5e8 and their
  gradient is 0 beyond.

Both are minima and maxima, not selections: a gradient passes no non-finite branch, and a NaN of a broken model stays a
NaN, which the train step sees and refuses.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LOWEST = -100.0
BOUND = 20.0


def floored(logprobs: Float[Array, "*shape"], mask: Bool[Array, "*shape"] | bool = True) -> Float[Array, "*shape"]:
    """Returns log-probabilities in nats, at least −100; 0 where not trained."""
    return jnp.maximum(jnp.where(mask, logprobs, 0.0), LOWEST)


def log_difference(
    new: Float[Array, "*shape"], old: Float[Array, "*shape"], mask: Bool[Array, "*shape"] | bool = True
) -> Float[Array, "*shape"]:
    """Returns log new − log old of two policies' log-probabilities in nats, each floored; 0 where not trained."""
    return floored(new, mask) - floored(old, mask)


def bounded_exp(exponent: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns e^x with x clamped to ±20."""
    return jnp.exp(jnp.clip(exponent, -BOUND, BOUND))
