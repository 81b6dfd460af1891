"""Every body of attention against float64 numpy, one query at a time."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.common.attention import (
    attention,
    cudnn_attention,
    cudnn_takes,
    reference_attention,
    splash_attention,
    splash_takes,
)

pytestmark = pytest.mark.slow

BATCH, TIME, HEADS, KV_HEADS, WIDTH = 2, 128, 4, 2, 128


def _inputs(dtype: jnp.dtype = jnp.float32) -> tuple[jax.Array, ...]:
    """Queries, keys, values, and rows that pack three trajectories before some padding."""
    random = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(random.standard_normal((BATCH, TIME, heads, WIDTH)), dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    segments = np.repeat([[1, 2, 3, 0], [1, 2, 3, 0]], [40, 1, 67, 20], axis=1)
    return q, k, v, jnp.asarray(segments, jnp.int32)


def _by_hand(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> np.ndarray:
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    segments = np.asarray(segment_ids)
    out = np.zeros_like(q)
    for row in range(BATCH):
        for t in range(TIME):
            seen = [s for s in range(t + 1) if segments[row, s] == segments[row, t]]
            for head in range(HEADS):
                scores = k[row, seen, head // 2] @ q[row, t, head] / np.sqrt(WIDTH)
                weights = np.exp(scores - scores.max())
                out[row, t, head] = weights @ v[row, seen, head // 2] / weights.sum()
    return out


def _splash(*inputs: jax.Array) -> jax.Array:
    return splash_attention(*inputs, interpret=True)


def _plain(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """The textbook formula, for JAX to differentiate."""
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    mask = (same & jnp.tril(jnp.ones((TIME, TIME), bool)))[:, None]
    key, value = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (key, value))
    scores = jnp.where(mask, jnp.einsum("bthk,bshk->bhts", query, key) / np.sqrt(WIDTH), -jnp.inf)
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), value)


BODIES = [attention, reference_attention, _splash]


@pytest.mark.parametrize("body", BODIES)
def test_every_body_gives_what_is_computed_by_hand(body: Callable[..., jax.Array]) -> None:
    inputs = _inputs()
    real = np.asarray(inputs[3] > 0)[:, :, None, None]
    got = np.asarray(body(*inputs))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got * real, _by_hand(*inputs) * real, atol=1e-5)


@pytest.mark.parametrize("body", BODIES)
def test_every_body_has_the_gradients_of_the_plain_formula(body: Callable[..., jax.Array]) -> None:
    *tensors, segments = _inputs()
    weight = jax.random.normal(jax.random.key(1), tensors[0].shape) * (segments > 0)[:, :, None, None]

    def gradients(function: Callable[..., jax.Array]) -> tuple[jax.Array, ...]:
        return jax.grad(lambda *x: jnp.sum(function(*x, segments) * weight), argnums=(0, 1, 2))(*tensors)

    for got, expected in zip(gradients(body), gradients(_plain), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5 * float(jnp.abs(expected).max()))


def test_bodies_say_what_they_take() -> None:
    query = _inputs()[0]
    assert splash_takes(query)
    assert not splash_takes(query[:, :100])
    assert not splash_takes(query[..., :64])
    assert not cudnn_takes(query), "cuDNN's fused attention knows no float32"
    assert cudnn_takes(query.astype(jnp.bfloat16))
    assert not cudnn_takes(jnp.zeros((1, 8, 1, 256), jnp.bfloat16))


def test_cudnn_gives_what_the_reference_gives() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("there is no GPU here, and cuDNN runs nowhere else")
    inputs = _inputs(jnp.bfloat16)
    real = np.asarray(inputs[3] > 0)[:, :, None, None]
    got, expected = (np.asarray(body(*inputs), np.float32) for body in (cudnn_attention, reference_attention))
    np.testing.assert_allclose(got * real, expected * real, atol=0.02)
