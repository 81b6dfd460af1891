"""Attention of one new token a sequence to a cache of keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.models.common.attention.blockwise import MASKED
from rljax.models.common.einsum import einsum_fp32
from rljax.models.common.hardware import Hardware


def cached_attention(
    query: Float[Array, "slots heads head_dim"],
    key: Float[Array, "slots kv_heads head_dim keys"],
    value: Float[Array, "slots kv_heads keys head_dim"],
    mask: Bool[Array, "slots keys"],
    hardware: Hardware,
) -> Float[Array, "slots heads head_dim"]:
    """Computes attention of one new token a slot to the cached keys and values, of which it sees those in `mask`.

    Both products read the cache in its memory layout; scores are float32.
    """
    slots, kv_heads, width, _ = key.shape
    grouped = (query * width**-0.5).reshape(slots, kv_heads, -1, width)
    scores = einsum_fp32("bgrk,bgks->bgrs", grouped, key, hardware)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, MASKED), axis=-1)
    return jnp.einsum("bgrs,bgsk->bgrk", weights.astype(value.dtype), value).reshape(query.shape)
