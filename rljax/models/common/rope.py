"""Rotary position embeddings in the Hugging Face layout: the two halves of a head rotate against each other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.rope_scaling import Scaled


def inverse_frequencies(architecture: Architecture, local: bool = False) -> Scaled:
    """Returns the radians per position of each rotating pair, float32 ``[rotary_dim / 2]``, and what cosine and sine
    are multiplied by.

    They are transformers': exponent and power are rounded to float32 before the reciprocal is taken, which moves an
    angle at 32k positions by thousandths. The power is rounded rightly. PyTorch's own may be one last bit off, another
    one on every kind of CPU.

    Args:
        architecture: of the model.
        local: those of layers with a window, where a model has others for them.
    """
    a = architecture
    alone = local and a.local_rope_theta is not None
    theta = a.local_rope_theta if alone and a.local_rope_theta is not None else a.rope_theta
    exponent = np.arange(0, a.rotary_dim, 2, dtype=np.float32) / np.float32(a.rotary_dim)
    wavelengths = np.power(np.float64(np.float32(theta)), exponent.astype(np.float64)).astype(np.float32)
    if a.rope_scaling is None or alone:
        return 1 / wavelengths, 1.0
    return a.rope_scaling.scaled(wavelengths, theta, a.context or a.max_position_embeddings)


def rotation(
    positions: Int[Array, "batch time"], architecture: Architecture, local: bool = False
) -> tuple[Float[Array, "batch time 1 pairs"], Float[Array, "batch time 1 pairs"]]:
    """Returns cosine and sine of every pair's angle, float32, broadcastable over heads; see `inverse_frequencies`."""
    frequencies, factor = inverse_frequencies(architecture, local)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    return (cos, sin) if factor == 1 else (cos * factor, sin * factor)


def rotate(
    x: Float[Array, "batch time heads head_dim"],
    cos: Float[Array, "batch time 1 pairs"],
    sin: Float[Array, "batch time 1 pairs"],
) -> Float[Array, "batch time heads head_dim"]:
    """Rotates each pair (i, i + pairs) of every head by its angle; what is beyond the pairs stays as it is."""
    width = 2 * cos.shape[-1]
    first, second = jnp.split(x[..., :width].astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
    return turned if width == x.shape[-1] else jnp.concatenate([turned, x[..., width:]], axis=-1)
