"""Attention by up to four blocks of queries, in plain XLA: for short rows on a CPU, where it is fastest."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from rljax.models.common.attention.blockwise import ATTENDED, MASKED
from rljax.models.common.attention.spans import Spans
from rljax.models.common.einsum import einsum_fp32
from rljax.models.common.hardware import Hardware

_QUERY_BLOCKS = 4  # more save less each, and cost compile time
_QUERIES = 16
"""Of the smallest block: smaller ones save less than they cost, and each is traced and compiled by itself."""


def dense_attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    spans: Spans,
    hardware: Hardware,
) -> Float[Array, "batch time heads head_dim"]:
    """Computes attention of whole rows with float32 scores; the backward pass recomputes its weights.

    Heads come before time, so that no product needs its operands transposed, which XLA on CPU does by copying. Each
    block of queries reads the keys up to its own end only: with four blocks, 5/8 of them. There are as many
    as divide the row, up to four.
    """
    batch, time, _, width = query.shape
    # The query heads that share a key-value head form one matrix product with it.
    grouped = (query * width**-0.5).reshape(batch, time, key.shape[2], -1, width).transpose(0, 2, 3, 1, 4)
    key, value, mask = key.swapaxes(1, 2), value.swapaxes(1, 2), spans.visible(jnp.arange(time))
    most = max(1, min(_QUERY_BLOCKS, time // _QUERIES))
    size = time // max(blocks for blocks in range(1, most + 1) if time % blocks == 0)
    parts = [
        _masked(
            hardware,
            grouped[:, :, :, end - size : end],
            key[:, :, :end],
            value[:, :, :end],
            mask[:, end - size : end, :end],
        )
        for end in range(size, time + 1, size)
    ]
    return jnp.concatenate(parts, axis=3).transpose(0, 3, 1, 2, 4).reshape(query.shape)


_Grouped = Float[Array, "batch kv_heads shared time head_dim"]
_Keys = Float[Array, "batch kv_heads keys head_dim"]


def _scores(hardware: Hardware, query: _Grouped, key: _Keys, mask: Bool[Array, "batch time keys"]) -> jax.Array:
    scores = einsum_fp32("bgrtk,bgsk->bgrts", query, key, hardware)
    return jnp.where(mask[:, None, None], scores, MASKED)


def _attend(
    hardware: Hardware, query: _Grouped, key: _Keys, value: _Keys, mask: jax.Array
) -> tuple[_Grouped, jax.Array]:
    scores = _scores(hardware, query, key, mask)
    highest = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    summed = einsum_fp32("bgrts,bgsk->bgrtk", weights.astype(value.dtype), value, hardware)
    return (summed / total).astype(value.dtype), highest + jnp.log(total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _masked(hardware: Hardware, query: _Grouped, key: _Keys, value: _Keys, mask: jax.Array) -> _Grouped:
    return _attend(hardware, query, key, value, mask)[0]


def _masked_forward(
    hardware: Hardware, query: _Grouped, key: _Keys, value: _Keys, mask: jax.Array
) -> tuple[_Grouped, tuple[jax.Array, ...]]:
    attended, log_total = (checkpoint_name(y, ATTENDED) for y in _attend(hardware, query, key, value, mask))
    return attended, (query, key, value, mask, attended, log_total)


def _masked_backward(
    hardware: Hardware, residuals: tuple[jax.Array, ...], cotangent: _Grouped
) -> tuple[_Grouped, _Keys, _Keys, None]:
    """Computes the backward pass of FlashAttention (Dao et al. 2022, algorithm 4), untiled."""
    query, key, value, mask, attended, log_total = residuals
    weights = jnp.exp(_scores(hardware, query, key, mask) - log_total)
    d_value = jnp.einsum("bgrts,bgrtk->bgsk", weights.astype(value.dtype), cotangent)
    d_weights = einsum_fp32("bgrtk,bgsk->bgrts", cotangent, value, hardware)
    shared = jnp.sum((cotangent * attended).astype(jnp.float32), axis=-1, keepdims=True)
    d_scores = (weights * (d_weights - shared)).astype(query.dtype)
    d_query = jnp.einsum("bgrts,bgsk->bgrtk", d_scores, key)
    d_key = jnp.einsum("bgrts,bgrtk->bgsk", d_scores, query)
    return d_query, d_key, d_value, None


_masked.defvjp(_masked_forward, _masked_backward)
