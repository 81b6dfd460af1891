"""Attention in plain XLA, block by block: the body for every platform, length, dtype and shape.

Queries and keys are cut into blocks; the scores of one block of each exist at once. A block of queries reads the
blocks of keys between the first and the last that one of them sees, so that those which causality or segments
empty cost nothing. Of a prompt that segments share it reads the blocks first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from rljax.models.common.attention.spans import Spans
from rljax.models.common.einsum import einsum_fp32
from rljax.models.common.hardware import Hardware

ATTENDED = "attended"
"""Name of attention's results for rematerialisation policies."""

BLOCK = 256
"""Queries or keys of a block, where there are as many: the few that a device may have of a short row are one block."""
MASKED = -1e30  # finite, so that a row with nothing to see gives no NaN

_Queries = Float[Array, "batch blocks kv_heads shared block head_dim"]
_Keys = Float[Array, "batch kv_heads keys head_dim"]


def blockwise_attention(
    query: Float[Array, "batch queries heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    spans: Spans,
    hardware: Hardware,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes attention by an online softmax (Milakov & Gimelshein 2018) with float32 scores; the backward pass
    recomputes them.
    """
    batch, time, heads, width = query.shape
    size = min(BLOCK, time)
    blocks = -(-time // size)
    room = ((0, 0), (0, blocks * size - time))
    grouped = jnp.pad(query * width**-0.5, (*room, (0, 0), (0, 0)))
    grouped = grouped.reshape(batch, blocks, size, key.shape[2], -1, width).transpose(0, 1, 3, 4, 2, 5)
    more = ((0, 0), (0, 0), (0, -key.shape[1] % min(BLOCK, key.shape[1])), (0, 0))
    key, value = (jnp.pad(x.swapaxes(1, 2), more) for x in (key, value))
    # Queries of the padding see nothing, and widen no block's span.

    def by_block(spans: Spans) -> Spans:
        ends = (spans.first, key.shape[2] - 1), (spans.last, -1)
        first, last = (jnp.pad(x, room, constant_values=none).reshape(batch, blocks, size) for x, none in ends)
        return Spans(first, last, None if spans.before is None else by_block(spans.before))

    attended = _blockwise(hardware, grouped, key, value, by_block(spans))
    return attended.transpose(0, 1, 4, 2, 3, 5).reshape(batch, -1, heads, width)[:, :time]


class _Block(NamedTuple):
    """A block of queries, and what they see."""

    query: Float[Array, "kv_heads shared block head_dim"]
    spans: Spans

    def walk(self, size: int, add: Callable[..., Any], sums: Any) -> Any:
        """Adds up what the blocks of so many keys give that one of the queries sees something of."""
        own = jnp.min(self.spans.first) // size, jnp.max(self.spans.last) // size + 1
        if (before := self.spans.before) is not None:
            there = before.first <= before.last
            first = jnp.min(jnp.where(there, before.first, self.spans.first)) // size
            stop = jnp.max(jnp.where(there, before.last, -1)) // size + 1
            sums = lax.fori_loop(first, jnp.minimum(stop, own[0]), add, sums)
        return lax.fori_loop(*own, add, sums)

    def scores(
        self, keys: Float[Array, "kv_heads block head_dim"], number: Int[Array, ""], hardware: Hardware
    ) -> Float[Array, "kv_heads shared block keys"]:
        scores = einsum_fp32("grtk,gsk->grts", self.query, keys, hardware)
        size = keys.shape[1]
        return jnp.where(self.spans.visible(number * size + jnp.arange(size)), scores, MASKED)


def _size(keys: Float[Array, "kv_heads keys head_dim"]) -> int:
    """Returns how many keys are a block of these, of which there are whole blocks."""
    return min(BLOCK, keys.shape[1])


def _cut(x: _Keys, number: Int[Array, ""]) -> Float[Array, "kv_heads block head_dim"]:
    return lax.dynamic_slice_in_dim(x, number * _size(x), _size(x), axis=1)


def _attend(hardware: Hardware, query: _Queries, key: _Keys, value: _Keys, spans: Spans) -> tuple[_Queries, jax.Array]:
    """Returns attended values, and the logarithm of each softmax's sum."""

    def of_block(key: _Keys, value: _Keys, block: _Block) -> tuple[jax.Array, jax.Array]:
        def add(number: Int[Array, ""], sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            highest, total, summed = sums
            scores = block.scores(_cut(key, number), number, hardware)
            higher = jnp.maximum(highest, jnp.max(scores, axis=-1, keepdims=True))
            weights, scale = jnp.exp(scores - higher), jnp.exp(highest - higher)
            more = einsum_fp32("grts,gsk->grtk", weights.astype(value.dtype), _cut(value, number), hardware)
            return higher, scale * total + jnp.sum(weights, axis=-1, keepdims=True), scale * summed + more

        nothing = jnp.zeros((*block.query.shape[:-1], 1), jnp.float32)
        sums = (nothing + MASKED, nothing, jnp.zeros(block.query.shape, jnp.float32))
        highest, total, summed = block.walk(_size(key), add, sums)
        total = jnp.where(total > 0, total, 1.0)  # a query that sees nothing: 0, and no NaN in a gradient
        return (summed / total).astype(value.dtype), highest + jnp.log(total)

    def of_row(row: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        query, key, value, spans = row
        return lax.map(functools.partial(of_block, key, value), _Block(query, spans))

    return lax.map(of_row, (query, key, value, spans))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blockwise(hardware: Hardware, query: _Queries, key: _Keys, value: _Keys, spans: Spans) -> _Queries:
    return _attend(hardware, query, key, value, spans)[0]


def _forward(
    hardware: Hardware, query: _Queries, key: _Keys, value: _Keys, spans: Spans
) -> tuple[_Queries, tuple[Any, ...]]:
    attended, log_total = (checkpoint_name(y, ATTENDED) for y in _attend(hardware, query, key, value, spans))
    return attended, (query, key, value, spans, attended, log_total)


def _backward(
    hardware: Hardware, residuals: tuple[Any, ...], cotangent: _Queries
) -> tuple[_Queries, _Keys, _Keys, None]:
    """Computes the backward pass of FlashAttention (Dao et al. 2022, algorithm 4)."""

    def of_row(row: tuple[Any, ...]) -> tuple[jax.Array, ...]:
        query, key, value, spans, attended, log_total, cotangent = row
        shared = jnp.sum((cotangent * attended).astype(jnp.float32), axis=-1, keepdims=True)

        def of_block(sums: tuple[jax.Array, ...], inputs: tuple[Any, ...]) -> tuple[tuple[jax.Array, ...], jax.Array]:
            block, log_total, shared, cotangent = inputs

            def add(number: Int[Array, ""], sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                d_query, d_key, d_value = sums
                keys = _cut(key, number)
                weights = jnp.exp(block.scores(keys, number, hardware) - log_total)
                d_weights = einsum_fp32("grtk,gsk->grts", cotangent, _cut(value, number), hardware)
                d_scores = (weights * (d_weights - shared)).astype(query.dtype)
                weights = weights.astype(value.dtype)
                more_keys = einsum_fp32("grts,grtk->gsk", d_scores, block.query, hardware)
                more_values = einsum_fp32("grts,grtk->gsk", weights, cotangent, hardware)
                return (
                    d_query + einsum_fp32("grts,gsk->grtk", d_scores, keys, hardware),
                    _added(d_key, more_keys, number),
                    _added(d_value, more_values, number),
                )

            begun = (jnp.zeros(block.query.shape, jnp.float32), *sums)
            d_query, *more = block.walk(_size(key), add, begun)
            return tuple(more), d_query.astype(query.dtype)

        nothing: tuple[jax.Array, ...] = (jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32))
        (d_key, d_value), d_query = lax.scan(of_block, nothing, (_Block(query, spans), log_total, shared, cotangent))
        return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)

    return (*lax.map(of_row, (*residuals, cotangent)), None)


def _added(total: _Keys, more: Float[Array, "kv_heads block head_dim"], number: Int[Array, ""]) -> _Keys:
    return lax.dynamic_update_slice_in_dim(total, _cut(total, number) + more, number * _size(total), axis=1)


_blockwise.defvjp(_forward, _backward)
