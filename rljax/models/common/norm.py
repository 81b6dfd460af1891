"""Normalisation layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... width"], scale: Float[Array, " width"], eps: float) -> Float[Array, "... width"]:
    """Applies root-mean-square normalisation (Zhang & Sennrich 2019), in float32 whatever the dtype of `x`."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * scale.astype(x.dtype)
