"""The key-value cache of the sampler: prompts are prefilled into slots, then every slot decodes one token at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.models.architecture import Architecture
from rljax.models.attention import attention, cached_attention
from rljax.models.rope import rotation
from rljax.models.transformer import Params, bind_block, output_head, rms_norm


class KVCache(NamedTuple):
    """Rotated keys and values of every slot and position, an array a layer. A pytree; donate it to what returns it.

    Layers lie apart and positions where attention wants them, so that a decoding step copies nothing: on a CPU that is
    a third of its time.

    Attributes:
        key: of each layer.
        value: of each layer.
    """

    key: tuple[Float[Array, "slots kv_heads head_dim length"], ...]
    value: tuple[Float[Array, "slots kv_heads length head_dim"], ...]

    @property
    def slots(self) -> int:
        """Sequences that the cache holds."""
        return self.key[0].shape[0]

    @property
    def length(self) -> int:
        """Longest sequence, in tokens, that a slot holds."""
        return self.key[0].shape[3]


def init_cache(architecture: Architecture, slots: int, length: int, dtype: jnp.dtype) -> KVCache:
    """An empty cache for `slots` sequences of at most `length` tokens."""
    a = architecture
    keys = tuple(jnp.zeros((slots, a.num_kv_heads, a.head_dim, length), dtype) for _ in range(a.num_layers))
    values = tuple(jnp.zeros((slots, a.num_kv_heads, length, a.head_dim), dtype) for _ in range(a.num_layers))
    return KVCache(keys, values)


def apart(params: Params) -> Params:
    """The parameters with ``layers`` as a tuple, one tree a layer: how `decode_step` reads them without copying."""
    layers = range(jax.tree.leaves(params["layers"])[0].shape[0])
    return {**params, "layers": tuple(jax.tree.map(lambda w, i=i: w[i], params["layers"]) for i in layers)}


def stacked(params: Params) -> Params:
    """Undoes `apart`."""
    return {**params, "layers": jax.tree.map(lambda *layers: jnp.stack(layers), *params["layers"])}


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
    keys, values = keys.transpose(0, 1, 3, 4, 2), values.swapaxes(2, 3)
    cache = KVCache(
        tuple(
            old.at[slots, :, :, :time].set(new.astype(old.dtype), mode="drop")
            for old, new in zip(cache.key, keys, strict=True)
        ),
        tuple(
            old.at[slots, :, :time].set(new.astype(old.dtype), mode="drop")
            for old, new in zip(cache.value, values, strict=True)
        ),
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
) -> tuple[Float[Array, "slots vocabulary"], KVCache]:
    """Reads one token into every slot.

    Args:
        params: of the model as `apart` makes them, in any dtype; cast to `dtype` where used.
        architecture: of the model.
        cache: to be read and written.
        token_ids: the token of each slot.
        positions: its position; the slot's earlier positions must have been filled. A position at or beyond the cache's
            length writes nothing; an idle slot's result means nothing and harms no other.
        dtype: of the computation.

    Returns:
        Float32 logits after the token of each slot, and the cache.
    """
    cos, sin = rotation(positions[:, None], architecture)
    mask = jnp.arange(cache.length)[None, :] <= positions[:, None]
    slot, head = jnp.arange(cache.slots)[:, None], jnp.arange(architecture.num_kv_heads)[None, :]
    place = positions[:, None]
    x = params["embedding"][token_ids][:, None].astype(dtype)
    filled_keys, filled_values = [], []
    for weights, keys, values in zip(params["layers"], cache.key, cache.value, strict=True):
        block = bind_block(architecture, weights, dtype)
        query, key, value = block.project(x, cos, sin)
        keys = keys.at[slot, head, :, place].set(key[:, 0].astype(keys.dtype), mode="drop")
        values = values.at[slot, head, place].set(value[:, 0].astype(values.dtype), mode="drop")
        attended = cached_attention(query[:, 0], keys.astype(dtype), values.astype(dtype), mask)
        x = block.finish(x, attended[:, None])
        filled_keys.append(keys)
        filled_values.append(values)
    logits = _logits(params, architecture, x[:, 0], dtype)
    return logits, KVCache(tuple(filled_keys), tuple(filled_values))
