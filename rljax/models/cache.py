"""The key-value cache of the sampler: prompts are prefilled into slots, then every slot decodes one token at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.models.architecture import Architecture
from rljax.models.attention import attention, reference_attention
from rljax.models.rope import rotation
from rljax.models.transformer import Params, bind_block, output_head, rms_norm


class KVCache(NamedTuple):
    """Rotated keys and values of every layer, slot and position. A pytree; donate it to the functions that return it.

    Attributes:
        key: ``[layers, slots, length, kv_heads, head_dim]``.
        value: like `key`.
    """

    key: Float[Array, "layers slots length kv_heads head_dim"]
    value: Float[Array, "layers slots length kv_heads head_dim"]

    @property
    def slots(self) -> int:
        """Sequences that the cache holds."""
        return self.key.shape[1]

    @property
    def length(self) -> int:
        """Longest sequence, in tokens, that a slot holds."""
        return self.key.shape[2]


def init_cache(architecture: Architecture, slots: int, length: int, dtype: jnp.dtype) -> KVCache:
    """An empty cache for `slots` sequences of at most `length` tokens."""
    a = architecture
    shape = (a.num_layers, slots, length, a.num_kv_heads, a.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def _logits(params: Params, architecture: Architecture, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    x = rms_norm(x, params["final_norm"], architecture.rms_eps)
    return jnp.dot(x, output_head(params, architecture).astype(dtype), preferred_element_type=jnp.float32)


def prefill(
    params: Params,
    architecture: Architecture,
    cache: KVCache,
    slots: Int[Array, " rows"],
    token_ids: Int[Array, "rows time"],
    lengths: Int[Array, " rows"],
    *,
    dtype: jnp.dtype = jnp.float32,
) -> tuple[Float[Array, "rows vocabulary"], KVCache]:
    """Reads whole sequences into slots, over whatever these held.

    Args:
        params: of the model, in any dtype; cast to `dtype` where used.
        architecture: of the model.
        cache: to be written.
        slots: where each row goes; rows whose slot is out of range (the number of slots, say) are written nowhere.
        token_ids: the rows, padded on the right with anything.
        lengths: true length of each row, at least 1.
        dtype: of the computation.

    Returns:
        Float32 logits after each row's last token, and the cache.
    """
    rows, time = token_ids.shape
    steps = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32), (rows, time))
    cos, sin = rotation(steps, architecture)
    real = (steps < lengths[:, None]).astype(jnp.int32)

    def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        block = bind_block(architecture, weights, dtype)
        query, key, value = block.project(x, cos, sin)
        return block.finish(x, attention(query, key, value, real)), (key, value)

    x = params["embedding"][token_ids].astype(dtype)
    x, (keys, values) = jax.lax.scan(layer, x, params["layers"])
    cache = KVCache(
        cache.key.at[:, slots, :time].set(keys.astype(cache.key.dtype), mode="drop"),
        cache.value.at[:, slots, :time].set(values.astype(cache.value.dtype), mode="drop"),
    )
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return _logits(params, architecture, last, dtype), cache


def decode_step(
    params: Params,
    architecture: Architecture,
    cache: KVCache,
    token_ids: Int[Array, " slots"],
    positions: Int[Array, " slots"],
    *,
    dtype: jnp.dtype = jnp.float32,
    kv_length: int | None = None,
) -> tuple[Float[Array, "slots vocabulary"], KVCache]:
    """Reads one token into every slot.

    Args:
        params: of the model, in any dtype; cast to `dtype` where used.
        architecture: of the model.
        cache: to be read and written.
        token_ids: the token of each slot.
        positions: its position; the slot's earlier positions must have been filled. A position at or beyond the cache's
            length writes nothing; an idle slot's result means nothing and harms no other.
        dtype: of the computation.
        kv_length: positions of the cache that are read at all; must exceed every position in use. None: all of them.

    Returns:
        Float32 logits after the token of each slot, and the cache.
    """
    length = kv_length or cache.length
    cos, sin = rotation(positions[:, None], architecture)
    mask = (jnp.arange(length)[None, :] <= positions[:, None])[:, None]
    slot = jnp.arange(cache.slots)

    def layer(carry: tuple[jax.Array, KVCache], inputs: tuple[jax.Array, Params]) -> tuple[tuple, None]:
        x, (keys, values) = carry
        index, weights = inputs
        block = bind_block(architecture, weights, dtype)
        query, key, value = block.project(x, cos, sin)
        keys = keys.at[index, slot, positions].set(key[:, 0].astype(keys.dtype), mode="drop")
        values = values.at[index, slot, positions].set(value[:, 0].astype(values.dtype), mode="drop")
        seen = [jax.lax.dynamic_index_in_dim(c, index, keepdims=False)[:, :length] for c in (keys, values)]
        attended = reference_attention(query, seen[0].astype(dtype), seen[1].astype(dtype), mask)
        return (block.finish(x, attended), KVCache(keys, values)), None

    x = params["embedding"][token_ids][:, None].astype(dtype)
    layers = jnp.arange(architecture.num_layers)
    (x, cache), _ = jax.lax.scan(layer, (x, cache), (layers, params["layers"]))
    return _logits(params, architecture, x[:, 0], dtype), cache
