"""The key-value cache of the sampler: prefill reads whole prompts, then each decoding step reads one token a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import Window, attention
from rljax.models.common.attention.cached import cached_attention
from rljax.models.common.attention.spans import Spans, causal_spans
from rljax.models.common.block import Block
from rljax.models.common.einsum import einsum_fp32
from rljax.models.common.experts.block import ExpertsBlock
from rljax.models.common.hardware import CPU, Hardware
from rljax.models.common.params import Params
from rljax.models.common.rope import rotation
from rljax.models.transformer import bind_block, final_norm, output_head, scaled

Routes = Int[Array, "rows time layers picked"] | None
"""Experts that the routers of all layers chose for each token, int16; None of a model without."""


class KVCache(NamedTuple):
    """Rotated keys and values of every slot and position, an array a layer. A pytree; donate it to what returns it.

    Layers are separate arrays, in the axis order that attention reads, so that a decoding step copies nothing: on a CPU
    that is a third of its time.

    Attributes:
        key: of each layer.
        value: of each layer.
    """

    key: tuple[Float[Array, "slots kv_heads head_dim length"], ...]
    value: tuple[Float[Array, "slots kv_heads length head_dim"], ...]

    @property
    def slots(self) -> int:
        """Number of sequences that the cache holds."""
        return self.key[0].shape[0]

    @property
    def length(self) -> int:
        """Longest sequence, in tokens, that a slot holds."""
        return self.key[0].shape[3]


def init_cache(architecture: Architecture, slots: int, length: int, dtype: DTypeLike) -> KVCache:
    """Returns an empty cache for `slots` sequences of at most `length` tokens."""
    a = architecture
    keys = tuple(jnp.zeros((slots, a.num_kv_heads, a.head_dim, length), dtype) for _ in range(a.num_layers))
    values = tuple(jnp.zeros((slots, a.num_kv_heads, length, a.head_dim), dtype) for _ in range(a.num_layers))
    return KVCache(keys, values)


def prefill(
    params: Params,
    architecture: Architecture,
    token_ids: Int[Array, "rows time"],
    lengths: Int[Array, " rows"],
    *,
    dtype: DTypeLike = jnp.float32,
    hardware: Hardware = CPU,
    routes: Routes = None,
) -> tuple[Float[Array, "rows time hidden"], KVCache, Routes]:
    """Reads whole sequences at once and fills a cache.

    Args:
        params: of the model with a tree a layer, as `hf_names.from_hf_by_layer` makes them, in any dtype; cast to
            `dtype` where used.
        architecture: of the model.
        token_ids: the rows, padded on the right with anything.
        lengths: true length of each row, at least 1.
        dtype: of the computation and the cache.
        hardware: that it is computed on.
        routes: experts that take the place of those which routers choose, -1 where they do not.

    Returns:
        What `transformer.hidden_states` returns for the rows, a cache of one slot a row, as long as the rows, and the
        experts of each token, ``[rows, time, layers, picked]``.
    """
    rows, time = token_ids.shape
    steps = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32), (rows, time))
    rotations = _rotations(steps, architecture)
    spans = causal_spans((steps < lengths[:, None]).astype(jnp.int32))
    x = scaled(params["embedding"][token_ids].astype(dtype), architecture)
    keys, values, chosen = [], [], []
    for layer, weights in enumerate(params["layers"]):
        block, window = bind_block(architecture, weights, dtype), architecture.window(layer)
        query, key, value = block.project(x, *rotations[window], hardware)
        attended = attention(query, key, value, spans, hardware, Window((window,)))
        x = block.finish(x, attended, hardware, None if routes is None else routes[:, :, layer])
        chosen += _chosen(block)
        keys.append(key.transpose(0, 2, 3, 1))
        values.append(value.swapaxes(1, 2))
    return final_norm(params, architecture, x), KVCache(tuple(keys), tuple(values)), _stacked(chosen)


def _chosen(block: Block) -> list[Int[Array, "rows time picked"]]:
    return [block.routing.chosen] if isinstance(block, ExpertsBlock) else []


def _stacked(routes: Sequence[Int[Array, "rows time picked"]]) -> Routes:
    return jnp.stack(routes, axis=2).astype(jnp.int16) if routes else None


def _rotations(
    positions: Int[Array, "rows time"], architecture: Architecture
) -> dict[int, tuple[jax.Array, jax.Array]]:
    """Returns cosine and sine for the layers of each window that the model has."""
    windows = set(architecture.windows) or {0}
    return {window: rotation(positions, architecture, local=window > 0) for window in windows}


def decode_step(
    params: Params,
    architecture: Architecture,
    cache: KVCache,
    token_ids: Int[Array, " slots"],
    positions: Int[Array, " slots"],
    *,
    dtype: DTypeLike = jnp.float32,
    hardware: Hardware = CPU,
) -> tuple[Float[Array, "slots vocabulary"], KVCache, Routes]:
    """Reads one token into every slot.

    Args:
        params: like those of `prefill`.
        architecture: of the model.
        cache: to be read and written.
        token_ids: the token of each slot.
        positions: its position; the slot's earlier positions must have been filled. A position at or beyond the cache's
            length writes nothing; an idle slot's result means nothing and harms no other.
        dtype: of the computation.
        hardware: that it is computed on.

    Returns:
        Float32 logits after the token of each slot, the cache, and the experts of each token, ``[slots, 1, layers,
        picked]``.
    """
    rotations = _rotations(positions[:, None], architecture)
    seen = Spans(jnp.zeros_like(positions), positions)
    masks = {window: seen.within(window).visible(jnp.arange(cache.length)) for window in rotations}
    slot, head = jnp.arange(cache.slots)[:, None], jnp.arange(architecture.num_kv_heads)[None, :]
    place = positions[:, None]
    x = scaled(params["embedding"][token_ids][:, None].astype(dtype), architecture)
    filled_keys, filled_values, routes = [], [], []
    for layer, (weights, keys, values) in enumerate(zip(params["layers"], cache.key, cache.value, strict=True)):
        block, window = bind_block(architecture, weights, dtype), architecture.window(layer)
        query, key, value = block.project(x, *rotations[window], hardware)
        keys = keys.at[slot, head, :, place].set(key[:, 0].astype(keys.dtype), mode="drop")
        values = values.at[slot, head, place].set(value[:, 0].astype(values.dtype), mode="drop")
        attended = cached_attention(query[:, 0], keys.astype(dtype), values.astype(dtype), masks[window], hardware)
        x = block.finish(x, attended[:, None], hardware)
        routes += _chosen(block)
        filled_keys.append(keys)
        filled_values.append(values)
    hidden = final_norm(params, architecture, x[:, 0])
    head = output_head(params, architecture).astype(dtype)
    logits = einsum_fp32("bh,hv->bv", hidden, head, hardware)
    return logits, KVCache(tuple(filled_keys), tuple(filled_values)), _stacked(routes)
