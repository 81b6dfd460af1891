"""Attention by the TPU's splash kernel, which skips the blocks that causality and windows empty."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.models.common.attention.blockwise import ATTENDED
from rljax.models.common.attention.spans import Spans

_LANES = 128  # of a TPU: the least block of the kernel
_LARGEST_BLOCK = 512
_WIDTHS = (64, 128, 256)
_DTYPES = (jnp.bfloat16, jnp.float32)


def why_no_splash(query: jax.Array) -> str:
    """Returns why the kernel does not take queries of this shape and dtype; empty if it does."""
    if query.shape[-1] not in _WIDTHS:
        return f"splash takes head widths {_WIDTHS}, not {query.shape[-1]}"
    return "" if query.dtype in _DTYPES else f"splash takes bfloat16 and float32, not {query.dtype}"


def block_size(time: int) -> int:
    """Returns the block for rows of so many tokens: large ones are faster, and a row is padded to whole blocks."""
    size = _LANES
    while size < _LARGEST_BLOCK and 8 * size <= time:
        size *= 2
    return size


def splash_kernel(queries: int, keys: int, heads: int, shards: int, interpret: bool, window: int = 0) -> Any:
    """Returns the kernel of one row.

    Args:
        queries: of the whole row, whole blocks in each shard.
        keys: of the whole row.
        heads: of a device.
        shards: devices that the row's queries are cut over.
        interpret: run step by step on any device, for tests.
        window: sliding window in tokens; 0: none.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    size = block_size(queries // shards)
    sizes = kernels.BlockSizes(
        block_q=size,
        block_kv=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_q_dq=size,
        block_kv_dq=size,
    )
    shape = (queries, keys)
    mask: Any
    if window:
        mask = masks.LocalMask(shape, window_size=(window - 1, 0), offset=0, shard_count=shards)
    else:
        mask = masks.CausalMask(shape, shard_count=shards)
    return kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=shards,
        residual_checkpoint_name=ATTENDED,
        interpret=interpret,
    )


def splash_attention(
    query: Float[Array, "batch queries heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    spans: Spans,
    segments: jax.Array,
    kernel: Any,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes attention of a device's rows by a kernel of `splash_kernel`.

    Args:
        query: queries.
        key: keys of whole rows.
        value: values of whole rows.
        spans: of the queries. Causality and windows are the kernel's own, and a segment is known by its first token.
        segments: first token of the segment of each key, ``[batch, keys]``.
        kernel: of these rows.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import SegmentIds

    scaled = query * query.shape[-1] ** -0.5

    def row(q: jax.Array, k: jax.Array, v: jax.Array, of_queries: jax.Array, of_keys: jax.Array) -> jax.Array:
        q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))  # heads first; the kernel shares k and v
        return kernel(q, k, v, segment_ids=SegmentIds(of_queries, of_keys)).swapaxes(0, 1)

    return jax.vmap(row)(scaled, key, value, spans.first, segments)
