"""Attention within segments: one function, and a body for each kind of device.

A query sees the keys of its own segment that do not come after it. Packed rows therefore behave like separate ones.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_MASKED = -1e30  # finite, so that a row with nothing to see gives no NaN


def attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    segment_ids: Int[Array, "batch time"],
) -> Float[Array, "batch time heads head_dim"]:
    """Causal attention within each segment of each row, scaled by 1/sqrt(head_dim).

    Args:
        query: queries, already rotated. Head h reads key-value head ``h // (heads / kv_heads)``.
        key: keys, already rotated.
        value: values.
        segment_ids: which trajectory each token belongs to; 0 is padding, whose outputs mean nothing but are finite.

    Returns:
        Attended values in the dtype of `query`.
    """
    return reference_attention(query, key, value, visible(segment_ids))


def visible(segment_ids: Int[Array, "batch time"]) -> Bool[Array, "batch time time"]:
    """Which keys (last axis) each query (middle axis) sees."""
    time = segment_ids.shape[1]
    causal = jnp.arange(time)[:, None] >= jnp.arange(time)[None, :]
    return causal & (segment_ids[:, :, None] == segment_ids[:, None, :])


def reference_attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    mask: Bool[Array, "batch time keys"],
) -> Float[Array, "batch time heads head_dim"]:
    """Plain softmax attention with float32 scores; the query heads of one key-value head form one matrix product."""
    batch, time, heads, width = query.shape
    kv_heads = key.shape[2]
    grouped = query.reshape(batch, time, kv_heads, heads // kv_heads, width) * width**-0.5
    scores = jnp.einsum("btgrk,bsgk->bgrts", grouped, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    attended = jnp.einsum("bgrts,bsgk->btgrk", weights, value)
    return attended.reshape(batch, time, heads, width)
