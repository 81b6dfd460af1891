"""Normalisation layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... width"], scale: Float[Array, " width"], eps: float) -> Float[Array, "... width"]:
    """Applies root-mean-square normalisation (Zhang & Sennrich 2019), in float32 whatever the dtype of `x`."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * spread(scale, x)


def spread(weight: Float[Array, " width"], x: Float[Array, "... width"]) -> Float[Array, "... width"]:
    """Returns a vector of weights in the dtype of `x`. A wider one is cast for each place, so that its gradient is
    summed over the places, and over devices, in its own dtype.
    """
    return weight if weight.dtype == x.dtype else jnp.broadcast_to(weight, x.shape).astype(x.dtype)
