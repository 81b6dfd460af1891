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
"""Queries, and keys, of a block: what fits the shared memory of every GPU since Ampere, at all widths. An H100 gains
nothing by 128, nor by more warps.
"""

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
    """Blocks that each block reads, ``[batch, blocks]``: the first, the first of which every query sees every key, the
    first after these, and the first that it no longer reads.
    """

    start: jax.Array
    whole: jax.Array
    rest: jax.Array
    stop: jax.Array


class _Plan(NamedTuple):
    """Keys that the queries see, by query and by block."""

    seen: tuple[jax.Array, jax.Array]  # the first and the last
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
    plan = _Plan((spans.first, spans.last), *_reaches(spans, keys))
    return _attention(interpret, query, key, value, plan)[:, :time]


def _padded(x: jax.Array, filler: int) -> jax.Array:
    room = ((0, 0), (0, -x.shape[1] % BLOCK), *[(0, 0)] * (x.ndim - 2))
    return jnp.pad(x, room, constant_values=filler)


def _reaches(spans: Spans, keys: int) -> tuple[_Reach, _Reach]:
    """Returns the blocks of keys that each block of queries reads, and the blocks of queries that read each of keys.

    Spans begin and end later from query to query, so either is one stretch, and so are the whole blocks in it.
    """
    first, last = (x.reshape(x.shape[0], -1, BLOCK) for x in (spans.first, spans.last))
    first, latest_first = jnp.min(first, axis=2), jnp.max(first, axis=2)
    last, earliest_last = jnp.max(last, axis=2), jnp.min(last, axis=2)
    keys_of = (first // BLOCK, -(-latest_first // BLOCK), (earliest_last + 1) // BLOCK, last // BLOCK + 1)
    begins = jnp.arange(0, keys, BLOCK)

    def blocks_with(condition: jax.Array) -> jax.Array:
        return jnp.sum(condition, axis=1, dtype=jnp.int32)

    queries_of = (
        blocks_with(last[:, :, None] < begins),
        blocks_with(earliest_last[:, :, None] < begins + BLOCK - 1),
        blocks_with(latest_first[:, :, None] <= begins),
        blocks_with(first[:, :, None] < begins + BLOCK),
    )
    return _in_order(*keys_of), _in_order(*queries_of)


def _in_order(start: jax.Array, whole: jax.Array, rest: jax.Array, stop: jax.Array) -> _Reach:
    """Returns the reach; where no block is whole, all that are read are the first part of it."""
    whole = jnp.clip(whole, start, jnp.maximum(start, stop))
    return _Reach(start, whole, jnp.clip(rest, whole, jnp.maximum(whole, stop)), stop)


def _walk(reach: Any, add: Callable[..., Any], sums: Any) -> Any:
    """Adds up what a block reads: it masks what is not whole."""
    start, whole, rest, stop = (bound[pl.program_id(0)] for bound in reach)
    sums = lax.fori_loop(start, whole, functools.partial(add, masked=True), sums)
    sums = lax.fori_loop(whole, rest, functools.partial(add, masked=False), sums)
    return lax.fori_loop(rest, stop, functools.partial(add, masked=True), sums)


def _scores(
    rows: jax.Array, columns: jax.Array, first: Any, last: Any, places: Any, masked: bool
) -> Float[Array, "rows columns"]:
    """Computes scores times log2(e): powers of 2 are cheaper than those of e."""
    scores = plgpu.dot(rows, columns.T) * (_LOG2_E * rows.shape[-1] ** -0.5)
    return jnp.where((places >= first) & (places <= last), scores, MASKED) if masked else scores


def _block(number: Any) -> Any:
    return pl.ds(number * BLOCK, BLOCK)


def _places(number: Any) -> Any:
    return number * BLOCK + jnp.arange(BLOCK)


def _forward_kernel(q_ref: Any, k_ref: Any, v_ref: Any, first_ref: Any, last_ref: Any, *refs: Any) -> None:
    *reach, out_ref, log_total_ref = refs
    q, first, last = q_ref[...], first_ref[...][:, None], last_ref[...][:, None]

    def add(j: jax.Array, sums: tuple[jax.Array, ...], masked: bool) -> tuple[jax.Array, ...]:
        highest, total, summed = sums
        scores = _scores(q, k_ref[_block(j), :], first, last, _places(j)[None, :], masked)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights, scale = jnp.exp2(scores - higher[:, None]), jnp.exp2(highest - higher)
        more = plgpu.dot(weights.astype(v_ref.dtype), v_ref[_block(j), :])
        return higher, scale * total + jnp.sum(weights, axis=1), scale[:, None] * summed + more

    nothing = jnp.zeros(BLOCK, jnp.float32)
    highest, total, summed = _walk(reach, add, (nothing + MASKED, nothing, jnp.zeros(q.shape, jnp.float32)))
    out_ref[...] = (summed / total[:, None]).astype(out_ref.dtype)
    log_total_ref[...] = highest + jnp.log2(total)


def _query_kernel(q_ref: Any, k_ref: Any, v_ref: Any, first_ref: Any, last_ref: Any, *refs: Any) -> None:
    *reach, log_total_ref, shared_ref, cotangent_ref, out_ref = refs
    q, cotangent, first, last = q_ref[...], cotangent_ref[...], first_ref[...][:, None], last_ref[...][:, None]
    log_total, shared = log_total_ref[...][:, None], shared_ref[...][:, None]

    def add(j: jax.Array, total: jax.Array, masked: bool) -> jax.Array:
        k = k_ref[_block(j), :]
        weights = jnp.exp2(_scores(q, k, first, last, _places(j)[None, :], masked) - log_total)
        d_scores = weights * (plgpu.dot(cotangent, v_ref[_block(j), :].T) - shared)
        return total + plgpu.dot(d_scores.astype(k.dtype), k)

    total = _walk(reach, add, jnp.zeros(q.shape, jnp.float32))
    out_ref[...] = (total * q.shape[1] ** -0.5).astype(out_ref.dtype)


def _key_kernel(q_ref: Any, k_ref: Any, v_ref: Any, first_ref: Any, last_ref: Any, *refs: Any) -> None:
    """Holds scores with a row a key, so that no product needs them turned."""
    *reach, log_total_ref, shared_ref, cotangent_ref, d_key_ref, d_value_ref = refs
    k, v, places = k_ref[...], v_ref[...], _places(pl.program_id(0))[:, None]

    def add(i: jax.Array, sums: tuple[jax.Array, jax.Array], masked: bool) -> tuple[jax.Array, jax.Array]:
        rows = _block(i)
        q, cotangent = q_ref[rows, :], cotangent_ref[rows, :]
        scores = _scores(k, q, first_ref[rows][None, :], last_ref[rows][None, :], places, masked)
        weights = jnp.exp2(scores - log_total_ref[rows][None, :])
        d_scores = weights * (plgpu.dot(v, cotangent.T) - shared_ref[rows][None, :])
        d_value = plgpu.dot(weights.astype(q.dtype), cotangent)
        return sums[0] + plgpu.dot(d_scores.astype(q.dtype), q), sums[1] + d_value

    nothing = jnp.zeros(k.shape, jnp.float32)
    d_key, d_value = _walk(reach, add, (nothing, nothing))
    d_key_ref[...] = (d_key * k.shape[1] ** -0.5).astype(d_key_ref.dtype)
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
    """Returns grid, specs of queries, keys, values, spans and reach, and specs of ``[batch, head, time]`` blocks of
    numbers and of vectors, for kernels that compute a block of queries of one head.
    """
    batch, time, heads, width = query.shape
    shared = heads // key.shape[2]
    blocks = time // BLOCK
    vectors = pl.BlockSpec((None, BLOCK, None, width), lambda i, b, h: (b, i, h, 0))
    keys = pl.BlockSpec((None, key.shape[1], None, width), lambda i, b, h: (b, 0, h // shared, 0))
    places = pl.BlockSpec((None, BLOCK), lambda i, b, h: (b, i))
    reach = pl.BlockSpec((None, blocks), lambda i, b, h: (b, 0))
    numbers = pl.BlockSpec((None, None, BLOCK), lambda i, b, h: (b, h, i))
    return (blocks, batch, heads), [vectors, keys, keys, places, places, *[reach] * 4], numbers, vectors


def _by_keys(query: jax.Array, key: jax.Array) -> tuple[Any, list[Any], Any, Any, Any]:
    """Returns the same for kernels that compute a block of keys as one head of queries reads it, and the spec of the
    result.
    """
    batch, time, heads, width = query.shape
    shared, blocks = heads // key.shape[2], key.shape[1] // BLOCK
    vectors = pl.BlockSpec((None, time, None, width), lambda j, b, h: (b, 0, h, 0))
    keys = pl.BlockSpec((None, BLOCK, None, width), lambda j, b, h: (b, j, h // shared, 0))
    out = pl.BlockSpec((None, BLOCK, None, width), lambda j, b, h: (b, j, h, 0))
    places = pl.BlockSpec((None, time), lambda j, b, h: (b, 0))
    reach = pl.BlockSpec((None, blocks), lambda j, b, h: (b, 0))
    numbers = pl.BlockSpec((None, None, time), lambda j, b, h: (b, h, 0))
    return (blocks, batch, heads), [vectors, keys, keys, places, places, *[reach] * 4], numbers, vectors, out


def _attend(interpret: bool, query: jax.Array, key: jax.Array, value: jax.Array, plan: _Plan) -> Any:
    grid, specs, numbers, vectors = _by_queries(query, key)
    sums = jax.ShapeDtypeStruct((query.shape[0], query.shape[2], query.shape[1]), jnp.float32)
    out = [(jax.ShapeDtypeStruct(query.shape, query.dtype), vectors), (sums, numbers)]
    return _call(_forward_kernel, interpret, grid, (query, key, value, *plan.seen, *plan.keys_of), specs, out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(interpret: bool, query: jax.Array, key: jax.Array, value: jax.Array, plan: _Plan) -> jax.Array:
    attended: jax.Array = _attend(interpret, query, key, value, plan)[0]
    return attended


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
    tensors, more = (query, key, value, *plan.seen), (log_total, shared, cotangent)

    grid, specs, numbers, vectors = _by_queries(query, key)
    inputs, specs = (*tensors, *plan.keys_of, *more), [*specs, numbers, numbers, vectors]
    out = [(jax.ShapeDtypeStruct(query.shape, query.dtype), vectors)]
    (d_query,) = _call(_query_kernel, interpret, grid, inputs, specs, out)

    grid, specs, numbers, vectors, result = _by_keys(query, key)
    inputs, specs = (*tensors, *plan.queries_of, *more), [*specs, numbers, numbers, vectors]
    by_head = jax.ShapeDtypeStruct((*key.shape[:2], *query.shape[2:]), key.dtype)
    found = _call(_key_kernel, interpret, grid, inputs, specs, [(by_head, result)] * 2)
    d_key, d_value = (_summed(x, key) for x in found)
    return d_query, d_key, d_value, None


def _summed(by_head: jax.Array, key: jax.Array) -> jax.Array:
    """Sums what heads of queries that share a head of keys give to it."""
    shared = by_head.reshape(*key.shape[:3], -1, key.shape[3])
    return jnp.sum(shared, axis=3, dtype=jnp.float32).astype(key.dtype)


_attention.defvjp(_forward, _backward)
