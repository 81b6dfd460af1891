"""The gradient of the lookup of embeddings against counting and numpy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.common.architecture import Architecture
from rljax.models.common.embedding import embed
from rljax.models.common.hardware import CPU
from rljax.models.transformer import hidden_states, init_params

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("times", [256, 1000, 8192])
def test_a_row_that_is_looked_up_many_times_gets_every_gradient(times: int) -> None:
    def total(table: jax.Array) -> jax.Array:
        return jnp.sum(embed(table, jnp.ones((1, times), jnp.int32), CPU).astype(jnp.float32))

    gradient = jax.jit(jax.grad(total))(jnp.ones((4, 8), jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    expected = np.zeros((4, 8))
    expected[1] = times
    np.testing.assert_array_equal(np.asarray(gradient, np.float64), expected)  # 256, 1000 and 8192 are bf16 numbers


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_and_gradient_are_those_of_numpy_rounded_once(dtype: jnp.dtype) -> None:
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(16, 8)), dtype)
    token_ids = np.minimum(rng.geometric(0.3, (4, 512)) - 1, 15)
    weights = jnp.asarray(rng.normal(0.3, 1.0, (4, 512, 8)), dtype)
    rows, pull = jax.vjp(lambda t: embed(t, jnp.asarray(token_ids), CPU), table)
    np.testing.assert_array_equal(rows, np.asarray(table)[token_ids])
    expected = np.zeros((16, 8))
    np.add.at(expected, token_ids, np.asarray(weights, np.float64))
    (gradient,) = pull(weights)
    assert gradient.dtype == dtype
    # half of the last of bf16's 8 bits
    np.testing.assert_allclose(np.asarray(gradient, np.float64), expected, rtol=2**-8 if dtype != jnp.float32 else 1e-4)


def test_a_float32_gradient_is_jaxs_own_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    table = jnp.asarray(rng.normal(size=(16, 8)), jnp.float32)
    token_ids = jnp.asarray(rng.integers(0, 5, (4, 512)))
    weights = jnp.asarray(rng.normal(size=(4, 512, 8)), jnp.float32)
    own = jax.vjp(lambda t: t[token_ids], table)[1](weights)
    ours = jax.vjp(lambda t: embed(t, token_ids, CPU), table)[1](weights)
    np.testing.assert_array_equal(own, ours)


ARCHITECTURE = Architecture(
    "qwen3",
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qk_norm=True,
)


@functools.partial(jax.jit, static_argnums=3)
@jax.grad
def gradient_of(params: dict, ids: jax.Array, pull: jax.Array, dtype: jnp.dtype) -> jax.Array:
    cast = jax.tree.map(lambda p: p.astype(dtype), params)
    places = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = hidden_states(cast, ARCHITECTURE, ids, places, jnp.ones_like(ids), dtype=dtype)
    return jnp.mean(hidden.astype(jnp.float32) @ pull)


@pytest.mark.parametrize("share", [0.05, 0.8])
def test_the_models_bf16_gradient_of_a_frequent_token_is_the_float32_one(share: float) -> None:
    params = init_params(ARCHITECTURE, 0)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 32, (16, 1024))
    ids = jnp.asarray(np.where(rng.random(ids.shape) < share, 5, ids))
    pull = jnp.asarray(rng.normal(size=32), jnp.float32)  # the same at every place, so that gradients add up
    expected, gradient = (
        np.asarray(gradient_of(params, ids, pull, dtype)["embedding"])[5] for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert np.linalg.norm(gradient - expected) < 0.03 * np.linalg.norm(expected)
