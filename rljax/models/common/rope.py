"""Rotary position embeddings in the Hugging Face layout: the two halves of a head rotate against each other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture


def inverse_frequencies(architecture: Architecture) -> np.ndarray:
    """Returns the radians per position of each rotating pair, float64 ``[head_dim / 2]``.

    The scaling is that of Llama 3.1 ("The Llama 3 Herd of Models", 2024, and its reference code): wavelengths longer
    than ``original / low_freq_factor`` are stretched by `factor`, shorter than ``original / high_freq_factor`` kept.
    """
    exponent = np.arange(0, architecture.head_dim, 2, dtype=np.float64) / architecture.head_dim
    frequency = architecture.rope_theta**-exponent
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequency
    turns = scaling.original_max_position_embeddings * frequency / (2 * np.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def rotation(
    positions: Int[Array, "batch time"], architecture: Architecture
) -> tuple[Float[Array, "batch time 1 pairs"], Float[Array, "batch time 1 pairs"]]:
    """Returns cosine and sine of every pair's angle, float32, broadcastable over heads."""
    angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(architecture).astype(np.float32)
    return jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]


def rotate(
    x: Float[Array, "batch time heads head_dim"],
    cos: Float[Array, "batch time 1 pairs"],
    sin: Float[Array, "batch time 1 pairs"],
) -> Float[Array, "batch time heads head_dim"]:
    """Rotates each pair (i, i + head_dim / 2) of every head by its angle."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
