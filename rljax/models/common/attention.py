"""Attention within segments: one function, and an implementation for each kind of device.

A query sees the keys of its own segment that do not come after it. Packed rows therefore behave like separate ones.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from rljax.models.common.einsum import einsum_fp32

ATTENDED = "attended"
"""Name of attention's results for rematerialisation policies."""

_MASKED = -1e30  # finite, so that a row with nothing to see gives no NaN
_QUERY_BLOCKS = 4  # more save less each, and cost compile time
_SPLASH_BLOCK = 128  # lanes of a TPU; splash attention wants multiples of it
_CUDNN_HEAD_DIM = 128  # largest head that cuDNN's fused kernels take on every GPU since Ampere


def attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    segment_ids: Int[Array, "batch time"],
) -> Float[Array, "batch time heads head_dim"]:
    """Computes causal attention within each segment of each row, scaled by 1/sqrt(head_dim).

    The implementation is that of the platform the program is compiled for, where its limits on shapes and dtypes are
    met, and the reference elsewhere.

    Args:
        query: queries, already rotated. Head h reads key-value head ``h // (heads / kv_heads)``.
        key: keys, already rotated.
        value: values.
        segment_ids: which trajectory each token belongs to; 0 is padding, whose outputs mean nothing but are finite.

    Returns:
        Attended values in the dtype of `query`.
    """
    platform = jax.default_backend()
    arguments = (query, key, value, segment_ids)
    if platform == "gpu" and cudnn_takes(query):
        return jax.lax.platform_dependent(*arguments, cuda=cudnn_attention, default=reference_attention)
    if platform == "tpu" and splash_takes(query):
        return jax.lax.platform_dependent(*arguments, tpu=splash_attention, default=reference_attention)
    return reference_attention(*arguments)


def visible(segment_ids: Int[Array, "batch time"]) -> Bool[Array, "batch time time"]:
    """Returns the causal segment mask: which keys (last axis) each query (middle axis) sees."""
    time = segment_ids.shape[1]
    causal = jnp.arange(time)[:, None] >= jnp.arange(time)[None, :]
    return causal & (segment_ids[:, :, None] == segment_ids[:, None, :])


def reference_attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    segment_ids: Int[Array, "batch time"],
) -> Float[Array, "batch time heads head_dim"]:
    """Computes `attention` in plain XLA, with float32 scores; the backward pass recomputes its weights.

    Heads come before time, so that no product needs its operands transposed, which XLA on CPU does by copying. Each
    block of queries reads the keys up to its own end only: with four blocks, 5/8 of them.
    """
    batch, time, _, width = query.shape
    # The query heads that share a key-value head form one matrix product with it.
    grouped = (query * width**-0.5).reshape(batch, time, key.shape[2], -1, width).transpose(0, 2, 3, 1, 4)
    key, value, mask = key.swapaxes(1, 2), value.swapaxes(1, 2), visible(segment_ids)
    size = time if time % _QUERY_BLOCKS else time // _QUERY_BLOCKS
    parts = [
        _masked(grouped[:, :, :, end - size : end], key[:, :, :end], value[:, :, :end], mask[:, end - size : end, :end])
        for end in range(size, time + 1, size)
    ]
    return jnp.concatenate(parts, axis=3).transpose(0, 3, 1, 2, 4).reshape(query.shape)


def cudnn_takes(query: Float[Array, "batch time heads head_dim"]) -> bool:
    """Returns whether `cudnn_attention` supports the shape and dtype."""
    width = query.shape[-1]
    return query.dtype in (jnp.bfloat16, jnp.float16) and width % 8 == 0 and width <= _CUDNN_HEAD_DIM


def cudnn_attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    segment_ids: Int[Array, "batch time"],
) -> Float[Array, "batch time heads head_dim"]:
    """Computes `attention` by cuDNN's fused kernel; the segments go in as a mask that all heads share."""
    mask = visible(segment_ids)[:, None]
    return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")


def splash_takes(query: Float[Array, "batch time heads head_dim"]) -> bool:
    """Returns whether `splash_attention` supports the shape."""
    return query.shape[1] % _SPLASH_BLOCK == 0 and query.shape[-1] % _SPLASH_BLOCK == 0


def splash_attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    segment_ids: Int[Array, "batch time"],
    *,
    interpret: bool = False,
) -> Float[Array, "batch time heads head_dim"]:
    """Computes `attention` by the TPU's splash kernel; `interpret` runs it step by step on any device, for tests."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, time, heads, width = query.shape
    mask = masks.MultiHeadMask([masks.CausalMask((time, time)) for _ in range(heads)])
    kernel = kernels.make_splash_mha(mask, head_shards=1, q_seq_shards=1, interpret=interpret)

    def row(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        q, k, v = (y.swapaxes(0, 1) for y in (q * width**-0.5, k, v))  # heads first; the kernel shares k and v
        return kernel(q, k, v, segment_ids=kernels.SegmentIds(segments, segments)).swapaxes(0, 1)

    return jax.vmap(row)(query, key, value, segment_ids)


def cached_attention(
    query: Float[Array, "slots heads head_dim"],
    key: Float[Array, "slots kv_heads head_dim keys"],
    value: Float[Array, "slots kv_heads keys head_dim"],
    mask: Bool[Array, "slots keys"],
) -> Float[Array, "slots heads head_dim"]:
    """Computes attention of one new token a slot to the cached keys and values, of which it sees those in `mask`.

    Both products read the cache in its memory layout; scores are float32.
    """
    slots, kv_heads, width, _ = key.shape
    grouped = (query * width**-0.5).reshape(slots, kv_heads, -1, width)
    scores = einsum_fp32("bgrk,bgks->bgrs", grouped, key)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _MASKED), axis=-1)
    return jnp.einsum("bgrs,bgsk->bgrk", weights.astype(value.dtype), value).reshape(query.shape)


_Grouped = Float[Array, "batch kv_heads shared time head_dim"]
_Keys = Float[Array, "batch kv_heads keys head_dim"]


def _scores(query: _Grouped, key: _Keys, mask: Bool[Array, "batch time keys"]) -> jax.Array:
    scores = einsum_fp32("bgrtk,bgsk->bgrts", query, key)
    return jnp.where(mask[:, None, None], scores, _MASKED)


def _attend(query: _Grouped, key: _Keys, value: _Keys, mask: jax.Array) -> tuple[_Grouped, jax.Array]:
    scores = _scores(query, key, mask)
    highest = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    summed = einsum_fp32("bgrts,bgsk->bgrtk", weights.astype(value.dtype), value)
    return (summed / total).astype(value.dtype), highest + jnp.log(total)


@jax.custom_vjp
def _masked(query: _Grouped, key: _Keys, value: _Keys, mask: jax.Array) -> _Grouped:
    return _attend(query, key, value, mask)[0]


def _masked_forward(
    query: _Grouped, key: _Keys, value: _Keys, mask: jax.Array
) -> tuple[_Grouped, tuple[jax.Array, ...]]:
    attended, log_total = (checkpoint_name(y, ATTENDED) for y in _attend(query, key, value, mask))
    return attended, (query, key, value, mask, attended, log_total)


def _masked_backward(residuals: tuple[jax.Array, ...], cotangent: _Grouped) -> tuple[_Grouped, _Keys, _Keys, None]:
    """Computes the backward pass of FlashAttention (Dao et al. 2022, algorithm 4), untiled."""
    query, key, value, mask, attended, log_total = residuals
    weights = jnp.exp(_scores(query, key, mask) - log_total)
    d_value = jnp.einsum("bgrts,bgrtk->bgsk", weights.astype(value.dtype), cotangent)
    d_weights = einsum_fp32("bgrtk,bgsk->bgrts", cotangent, value)
    shared = jnp.sum((cotangent * attended).astype(jnp.float32), axis=-1, keepdims=True)
    d_scores = (weights * (d_weights - shared)).astype(query.dtype)
    d_query = jnp.einsum("bgrts,bgsk->bgrtk", d_scores, key)
    d_key = jnp.einsum("bgrts,bgrtk->bgsk", d_scores, query)
    return d_query, d_key, d_value, None


_masked.defvjp(_masked_forward, _masked_backward)
