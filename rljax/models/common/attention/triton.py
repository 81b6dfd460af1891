"""Attention on NVIDIA's GPUs by Pallas kernels for Triton, which skip the blocks that causality or segments empty.

The field's kernels do not say "packed and causal" in public: cuDNN gets the segments of long rows as a bias of T×T
numbers, and JAX's own Pallas kernel walks through all keys before a query and wants a copy of each key-value head per
query head. These are FlashAttention-2 (Dao 2023, https://arxiv.org/abs/2307.08691) over `Spans`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from rljax.models.common.attention.blockwise import ATTENDED, MASKED
from rljax.models.common.attention.spans import Spans
from rljax.models.common.hardware import Hardware

BLOCK = 64
"""Queries, and keys, of a block: what fits the shared memory of every GPU since Ampere, at all widths."""

_WIDTHS = (32, 64, 128)
_DTYPES = (jnp.bfloat16, jnp.float16)
_AMPERE = 8.0
_LOG2_E = math.log2(math.e)


def why_no_triton(query: jax.Array, hardware: Hardware) -> str:
    """Returns why the kernels do not take queries of this shape and dtype on this GPU; empty if they do."""
    if hardware.capability < _AMPERE:
        return f"the kernel needs compute capability {_AMPERE} or later, not {hardware.capability}"
    if query.shape[-1] not in _WIDTHS:
        return f"the kernel takes head widths {_WIDTHS}, not {query.shape[-1]}"
    return "" if query.dtype in _DTYPES else f"the kernel takes bfloat16 and float16, not {query.dtype}"


class _Reach(NamedTuple):
    """First block that each block reads, and first that it no longer does, ``[batch, blocks]``."""

    start: jax.Array
    stop: jax.Array


class _Plan(NamedTuple):
    """Keys that the queries see, by query and by block."""

    spans: Spans
    keys_of: _Reach  # of a block of queries
    queries_of: _Reach  # of a block of keys


def triton_attention(
    query: Float[Array, "batch queries heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    spans: Spans,
    *,
    interpret: bool = False,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes attention with float32 scores; `interpret` runs the kernels step by step on any device, for tests."""
    time = query.shape[1]
    query, key, value = (_padded(x, 0) for x in (query, key, value))
    keys = key.shape[1]
    spans = Spans(_padded(spans.first, keys), _padded(spans.last, -1))  # queries of the padding widen no block's span
    first, last = (x.reshape(x.shape[0], -1, BLOCK) for x in spans)
    first, last = jnp.min(first, axis=2), jnp.max(last, axis=2)
    begins = jnp.arange(0, keys, BLOCK)
    # Spans begin and end later from query to query, so what sees a block of keys is one stretch.
    queries_of = _Reach(
        jnp.sum(last[:, :, None] < begins, axis=1, dtype=jnp.int32),
        jnp.sum(first[:, :, None] < begins + BLOCK, axis=1, dtype=jnp.int32),
    )
    plan = _Plan(spans, _Reach(first // BLOCK, last // BLOCK + 1), queries_of)
    return _attention(interpret, query, key, value, plan)[:, :time]


def _padded(x: jax.Array, filler: int) -> jax.Array:
    room = ((0, 0), (0, -x.shape[1] % BLOCK), *[(0, 0)] * (x.ndim - 2))
    return jnp.pad(x, room, constant_values=filler)


def _scores(
    q: jax.Array, k: jax.Array, first: jax.Array, last: jax.Array, number: jax.Array
) -> Float[Array, "queries keys"]:
    """Computes scores times log2(e): powers of 2 are cheaper than those of e."""
    places = number * BLOCK + jnp.arange(BLOCK)
    seen = (places[None, :] >= first[:, None]) & (places[None, :] <= last[:, None])
    return jnp.where(seen, plgpu.dot(q, k.T) * (_LOG2_E * q.shape[-1] ** -0.5), MASKED)


def _block(number: Any) -> Any:
    return pl.ds(number * BLOCK, BLOCK)


def _forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, first_ref: Any, last_ref: Any, start_ref: Any, stop_ref: Any, *out: Any
) -> None:
    q, first, last = q_ref[...], first_ref[...], last_ref[...]
    number = pl.program_id(0)

    def add(j: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        highest, total, summed = sums
        scores = _scores(q, k_ref[_block(j), :], first, last, j)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights, scale = jnp.exp2(scores - higher[:, None]), jnp.exp2(highest - higher)
        more = plgpu.dot(weights.astype(v_ref.dtype), v_ref[_block(j), :])
        return higher, scale * total + jnp.sum(weights, axis=1), scale[:, None] * summed + more

    nothing = jnp.zeros(BLOCK, jnp.float32)
    sums = (nothing + MASKED, nothing, jnp.zeros(q.shape, jnp.float32))
    highest, total, summed = lax.fori_loop(start_ref[number], stop_ref[number], add, sums)
    out[0][...] = (summed / total[:, None]).astype(out[0].dtype)
    out[1][...] = highest + jnp.log2(total)


def _query_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    first_ref: Any,
    last_ref: Any,
    start_ref: Any,
    stop_ref: Any,
    log_total_ref: Any,
    shared_ref: Any,
    cotangent_ref: Any,
    out_ref: Any,
) -> None:
    q, first, last, cotangent = q_ref[...], first_ref[...], last_ref[...], cotangent_ref[...]
    log_total, shared = log_total_ref[...], shared_ref[...]
    number = pl.program_id(0)

    def add(j: jax.Array, total: jax.Array) -> jax.Array:
        k = k_ref[_block(j), :]
        weights = jnp.exp2(_scores(q, k, first, last, j) - log_total[:, None])
        d_scores = weights * (plgpu.dot(cotangent, v_ref[_block(j), :].T) - shared[:, None])
        return total + plgpu.dot(d_scores.astype(k.dtype), k)

    total = lax.fori_loop(start_ref[number], stop_ref[number], add, jnp.zeros(q.shape, jnp.float32))
    out_ref[...] = (total * q.shape[-1] ** -0.5).astype(out_ref.dtype)


def _key_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    first_ref: Any,
    last_ref: Any,
    start_ref: Any,
    stop_ref: Any,
    log_total_ref: Any,
    shared_ref: Any,
    cotangent_ref: Any,
    d_key_ref: Any,
    d_value_ref: Any,
) -> None:
    k, v = k_ref[...], v_ref[...]
    number = pl.program_id(0)

    def of_head(head: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def add(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            rows = _block(i)
            q, cotangent = q_ref[rows, head, :], cotangent_ref[rows, head, :]
            scores = _scores(q, k, first_ref[rows], last_ref[rows], number)
            weights = jnp.exp2(scores - log_total_ref[head, rows][:, None])
            d_scores = weights * (plgpu.dot(cotangent, v.T) - shared_ref[head, rows][:, None])
            d_key = plgpu.dot(d_scores.astype(q.dtype).T, q)
            return sums[0] + d_key, sums[1] + plgpu.dot(weights.astype(q.dtype).T, cotangent)

        return lax.fori_loop(start_ref[number], stop_ref[number], add, sums)

    nothing = jnp.zeros(k.shape, jnp.float32)
    d_key, d_value = lax.fori_loop(0, q_ref.shape[1], of_head, (nothing, nothing))
    d_key_ref[...] = (d_key * k.shape[-1] ** -0.5).astype(d_key_ref.dtype)
    d_value_ref[...] = d_value.astype(d_value_ref.dtype)


def _call(kernel: Callable[..., None], interpret: bool, grid: Any, inputs: Any, specs: Any, out: Any) -> Any:
    shapes, out_specs = zip(*out, strict=True)
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=specs,
        out_specs=list(out_specs),
        out_shape=list(shapes),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name=kernel.__name__.strip("_"),
    )(*inputs)


def _by_queries(query: jax.Array, key: jax.Array) -> tuple[Any, list[Any], Any, Any]:
    """Returns grid, specs of queries, keys, values and plan, and specs of ``[batch, time, head]`` blocks of numbers and
    of vectors, for kernels that compute a block of queries of one head.
    """
    batch, time, heads, width = query.shape
    shared = heads // key.shape[2]
    blocks = time // BLOCK
    vectors = pl.BlockSpec((None, BLOCK, None, width), lambda i, b, h: (b, i, h, 0))
    keys = pl.BlockSpec((None, key.shape[1], None, width), lambda i, b, h: (b, 0, h // shared, 0))
    places = pl.BlockSpec((None, BLOCK), lambda i, b, h: (b, i))
    reach = pl.BlockSpec((None, blocks), lambda i, b, h: (b, 0))
    numbers = pl.BlockSpec((None, None, BLOCK), lambda i, b, h: (b, h, i))
    return (blocks, batch, heads), [vectors, keys, keys, places, places, reach, reach], numbers, vectors


def _by_keys(query: jax.Array, key: jax.Array) -> tuple[Any, list[Any], Any, Any, Any]:
    """Returns the same for kernels that compute a block of keys of one key-value head, and the spec of keys."""
    batch, time, heads, width = query.shape
    shared, blocks = heads // key.shape[2], key.shape[1] // BLOCK
    vectors = pl.BlockSpec((None, time, shared, width), lambda j, b, g: (b, 0, g, 0))
    keys = pl.BlockSpec((None, BLOCK, None, width), lambda j, b, g: (b, j, g, 0))
    places = pl.BlockSpec((None, time), lambda j, b, g: (b, 0))
    reach = pl.BlockSpec((None, blocks), lambda j, b, g: (b, 0))
    numbers = pl.BlockSpec((None, shared, time), lambda j, b, g: (b, g, 0))
    return (blocks, batch, key.shape[2]), [vectors, keys, keys, places, places, reach, reach], numbers, vectors, keys


def _attend(interpret: bool, query: jax.Array, key: jax.Array, value: jax.Array, plan: _Plan) -> Any:
    grid, specs, numbers, vectors = _by_queries(query, key)
    sums = jax.ShapeDtypeStruct((query.shape[0], query.shape[2], query.shape[1]), jnp.float32)
    out = [(jax.ShapeDtypeStruct(query.shape, query.dtype), vectors), (sums, numbers)]
    return _call(_forward_kernel, interpret, grid, (query, key, value, *plan.spans, *plan.keys_of), specs, out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(interpret: bool, query: jax.Array, key: jax.Array, value: jax.Array, plan: _Plan) -> jax.Array:
    return _attend(interpret, query, key, value, plan)[0]


def _forward(
    interpret: bool, query: jax.Array, key: jax.Array, value: jax.Array, plan: _Plan
) -> tuple[jax.Array, tuple[Any, ...]]:
    attended, log_total = (checkpoint_name(x, ATTENDED) for x in _attend(interpret, query, key, value, plan))
    return attended, (query, key, value, plan, attended, log_total)


def _backward(
    interpret: bool, residuals: tuple[Any, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    query, key, value, plan, attended, log_total = residuals
    shared = jnp.einsum("bthk,bthk->bht", attended, cotangent, preferred_element_type=jnp.float32)
    tensors, more = (query, key, value, *plan.spans), (log_total, shared, cotangent)

    grid, specs, numbers, vectors = _by_queries(query, key)
    inputs, specs = (*tensors, *plan.keys_of, *more), [*specs, numbers, numbers, vectors]
    out = [(jax.ShapeDtypeStruct(query.shape, query.dtype), vectors)]
    (d_query,) = _call(_query_kernel, interpret, grid, inputs, specs, out)

    grid, specs, numbers, vectors, keys = _by_keys(query, key)
    inputs, specs = (*tensors, *plan.queries_of, *more), [*specs, numbers, numbers, vectors]
    out = [(jax.ShapeDtypeStruct(x.shape, x.dtype), keys) for x in (key, value)]
    d_key, d_value = _call(_key_kernel, interpret, grid, inputs, specs, out)
    return d_query, d_key, d_value, None


_attention.defvjp(_forward, _backward)
