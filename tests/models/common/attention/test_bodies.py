"""Every body of attention against float64 numpy, one query at a time, and against the textbook formula's gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from rljax.models.common.attention.attention import Body, Window, attended_by, attention, body_for
from rljax.models.common.attention.blockwise import blockwise_attention
from rljax.models.common.attention.dense import dense_attention
from rljax.models.common.attention.spans import Spans, causal_spans
from rljax.models.common.hardware import CPU, Hardware

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    time: int
    heads: int
    kv_heads: int
    width: int
    segments: list[list[int]]  # lengths, the last of padding
    window: int = 0


PACKED = Case(128, 4, 2, 64, [[40, 1, 67, 20], [128, 0]])
LONG = Case(700, 3, 1, 16, [[10, 300, 250, 140], [699, 1]])  # several blocks; segments end within them; one kv head
ODD = Case(37, 2, 2, 24, [[36, 1], [5, 30, 2]])
BLOCKS_OF_16 = PACKED._replace(time=48, segments=[[20, 25, 3], [48, 0]])  # three
TWO_BLOCKS = PACKED._replace(time=50, segments=[[20, 27, 3], [50, 0]])  # neither four nor three divides it
THREE = Case(150, 3, 1, 32, [[10, 70, 60, 10], [149, 1]])
WIDE = Case(300, 4, 4, 128, [[300, 0]])
ONE_HEAD = Case(128, 3, 1, 64, [[50, 70, 8]])
WIDEST = Case(128, 2, 2, 256, [[100, 28]])
TWO_IN_SIGHT = ODD._replace(window=2)
SLIDING = PACKED._replace(window=33)
SLIDING_FAR = LONG._replace(window=257)  # over blocks, and from one segment's end not into the one before
SLIDING_WIDE = WIDE._replace(window=130)


def _inputs(case: Case) -> tuple[jax.Array, ...]:
    """Queries, keys, values, and the segments of rows that pack trajectories before some padding."""
    random = np.random.default_rng(0)
    batch = len(case.segments)
    q, k, v = (
        jnp.asarray(random.standard_normal((batch, case.time, heads, case.width)), jnp.float32)
        for heads in (case.heads, case.kv_heads, case.kv_heads)
    )
    numbers = [np.repeat([*range(1, len(row)), 0], row) for row in case.segments]
    return q, k, v, jnp.asarray(np.stack(numbers), jnp.int32)


def _by_hand(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, window: int) -> np.ndarray:
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    segments, shared = np.asarray(segment_ids), query.shape[2] // key.shape[2]
    out = np.zeros_like(q)
    for row, t in np.argwhere(segments > 0):
        seen = np.flatnonzero(segments[row, : t + 1] == segments[row, t])
        seen = seen[-window:] if window else seen
        for head in range(q.shape[2]):
            scores = k[row, seen, head // shared] @ q[row, t, head] / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            out[row, t, head] = weights @ v[row, seen, head // shared] / weights.sum()
    return out


def _plain(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, window: int) -> jax.Array:
    """The textbook formula, for JAX to differentiate."""
    time, shared = query.shape[1], query.shape[2] // key.shape[2]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    band = jnp.tril(jnp.ones((time, time), bool)) & ~jnp.tril(jnp.ones((time, time), bool), -(window or time))
    mask = (same & band)[:, None]
    key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
    scores = jnp.where(mask, jnp.einsum("bthk,bshk->bhts", query, key) / np.sqrt(query.shape[-1]), -jnp.inf)
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), value)


def _chosen(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    return attention(q, k, v, causal_spans(segments), CPU, Window((window,)))


def _one_of_two(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    """The window that a layer is told when the program runs."""
    return attention(q, k, v, causal_spans(segments), CPU, Window((5, window), segments[0, 0]))


def _dense(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    return dense_attention(q, k, v, causal_spans(segments).within(window), CPU)


def _blockwise(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    return blockwise_attention(q, k, v, causal_spans(segments).within(window), CPU)


def _splash(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    return attended_by("splash", q, k, v, causal_spans(segments), CPU, Window((window,)), interpret=True)


def _splash_of_two(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    seen = Window((0, window), segments[0, 0])
    return attended_by("splash", q, k, v, causal_spans(segments), CPU, seen, interpret=True)


def _triton(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int = 0) -> jax.Array:
    return attended_by("triton", q, k, v, causal_spans(segments), CPU, Window((window,)), interpret=True)


BODIES = [
    (_chosen, PACKED),
    (_dense, PACKED),
    (_dense, ODD),
    (_dense, BLOCKS_OF_16),
    (_dense, TWO_BLOCKS),
    (_blockwise, PACKED),
    (_blockwise, LONG),
    (_blockwise, ODD),
    (_triton, PACKED),
    (_triton, THREE),
    (_splash, PACKED),
    (_splash, WIDE),
    (_splash, ONE_HEAD),
    (_splash, WIDEST),
    (_chosen, SLIDING),
    (_one_of_two, ODD),
    (_one_of_two, SLIDING_FAR),
    (_dense, TWO_IN_SIGHT),
    (_dense, SLIDING),
    (_blockwise, TWO_IN_SIGHT),
    (_blockwise, SLIDING_FAR),
    (_triton, SLIDING),
    (_triton, THREE._replace(window=70)),
    (_splash, SLIDING),
    (_splash, SLIDING_WIDE),
    (_splash_of_two, SLIDING_WIDE),
]


@pytest.mark.parametrize(("body", "case"), BODIES)
def test_every_body_gives_what_is_computed_by_hand(body: Callable[..., jax.Array], case: Case) -> None:
    inputs = _inputs(case)
    real = np.asarray(inputs[3] > 0)[:, :, None, None]
    got = np.asarray(jax.jit(functools.partial(body, window=case.window))(*inputs))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got * real, _by_hand(*inputs, case.window), atol=1e-5)


@pytest.mark.parametrize(("body", "case"), BODIES)
def test_every_body_has_the_gradients_of_the_plain_formula(body: Callable[..., jax.Array], case: Case) -> None:
    *tensors, segments = _inputs(case)
    weight = jax.random.normal(jax.random.key(1), tensors[0].shape) * (segments > 0)[:, :, None, None]

    def gradients(function: Callable[..., jax.Array]) -> tuple[jax.Array, ...]:
        return jax.jit(jax.grad(lambda *x: jnp.sum(function(*x, segments, case.window) * weight), argnums=(0, 1, 2)))(
            *tensors
        )

    for got, expected in zip(gradients(body), gradients(_plain), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5 * float(jnp.abs(expected).max()))


ROW_IN_TWO: Any = AbstractMesh((1, 1, 2, 1, 1), ("data", "fsdp", "sequence", "expert", "tensor"))


def _query(time: int = 2048, width: int = 128, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, time, 2, width), dtype)


HOPPER, TURING, TPU = Hardware("gpu", capability=9.0), Hardware("gpu", capability=7.5), Hardware("tpu")


@pytest.mark.parametrize(
    ("hardware", "query", "name", "reason"),
    [
        (HOPPER, _query(), "triton", ""),
        (HOPPER, _query(64), "triton", ""),
        (HOPPER, _query(dtype="float32"), "blockwise", "not float32"),
        (HOPPER, _query(width=80), "blockwise", "not 80"),
        (TURING, _query(), "blockwise", "not 7.5"),
        (Hardware("gpu"), _query(), "blockwise", "compute capability"),  # AMD's
        (TPU, _query(1504), "splash", ""),
        (TPU, _query(dtype="float32"), "splash", ""),
        (TPU, _query(width=64), "splash", ""),
        (TPU, _query(width=256), "splash", ""),
        (TPU, _query(width=80), "blockwise", "not 80"),
        (TPU, _query(dtype="float16"), "blockwise", "not float16"),
        (CPU, _query(256), "dense", ""),
        (Hardware("cpu", ROW_IN_TWO), _query(256), "blockwise", ""),
        (CPU, _query(), "blockwise", ""),
    ],
)
def test_the_hardware_chooses_the_body_and_says_why_not_its_kernel(
    hardware: Hardware, query: jax.ShapeDtypeStruct, name: str, reason: str
) -> None:
    found = body_for(query, hardware)
    assert found.name == name
    assert reason in found.reason
    assert bool(found.reason) == bool(reason), Body


def test_a_long_row_takes_memory_by_its_length() -> None:
    def mib(time: int) -> float:
        segments = jax.ShapeDtypeStruct((1, time), jnp.int32)
        tensors = [jax.ShapeDtypeStruct((1, time, heads, 16), jnp.float32) for heads in (2, 1, 1)]
        gradient = jax.grad(lambda *x: jnp.sum(_blockwise(*x)), argnums=(0, 1, 2))
        compiled = jax.jit(gradient).lower(*tensors, segments).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 2**20

    scores_of_a_row = 2 * 16384 * 16384 * 4 / 2**20
    assert mib(16384) < scores_of_a_row / 50


def test_a_device_computes_for_the_few_queries_that_it_has_of_a_short_row() -> None:
    """6 of 48, of one head of 16: 2 · 6 · 48 · 16 operations for the scores, as many for what is attended."""
    query, keys = (jax.ShapeDtypeStruct((1, time, 1, 16), jnp.float32) for time in (6, 48))
    spans = Spans(*(jax.ShapeDtypeStruct((1, 6), jnp.int32) for _ in range(2)))
    program = jax.jit(functools.partial(blockwise_attention, hardware=CPU)).lower(query, keys, keys, spans)
    assert 2 * 2 * 6 * 48 * 16 <= program.compile().cost_analysis()["flops"] < 2 * 2 * 2 * 6 * 48 * 16


def test_blocks_that_segments_empty_are_not_read() -> None:
    """What is in them reaches no result: not even what no number survives."""
    q, k, v, _ = _inputs(LONG)
    segments = jnp.asarray(np.repeat([[1, 2]], [512, 188], axis=1).repeat(2, axis=0), jnp.int32)
    spoiled = v.at[:, :512].set(jnp.nan)
    for body in (_blockwise, _triton):
        assert np.isfinite(jax.jit(body)(q, k, spoiled, segments)[:, 512:]).all()
