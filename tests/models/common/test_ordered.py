"""Sums in a fixed order, against sums one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models.common.embedding import embed
from rljax.models.common.hardware import CPU, Hardware
from rljax.models.common.ordered import select_places, sum_by_row, sum_by_stretch

by_row = jax.jit(sum_by_row, static_argnums=2)  # as in a program: by themselves its steps are compiled one by one
by_stretch = jax.jit(sum_by_stretch)


def test_values_are_summed_by_their_row_and_others_left_out() -> None:
    rng = np.random.default_rng(0)
    ids, values = rng.integers(0, 9, 200), rng.normal(size=(200, 3))
    ids[ids == 4] = 5  # a row without values
    expected = np.zeros((7, 3))
    for row, value in zip(ids, values, strict=True):
        if row < 7:
            expected[row] += value
    summed = by_row(jnp.asarray(ids), jnp.asarray(values, jnp.float32), 7)
    np.testing.assert_allclose(summed, expected, atol=1e-5)
    assert not np.any(summed[4])
    first, whole = jnp.full(8, 7), jnp.ones((8, 1), jnp.float32)
    assert not np.any(by_row(first, whole, 7)), "none of the rows"


def test_stretches_are_summed_and_each_value_counts_for_all_of_its_own() -> None:
    values = jnp.asarray([[1.0, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]])
    ids = jnp.asarray([[0, 0, 1, 3, 3, 3], [2, 2, 2, 2, 2, 7]])
    np.testing.assert_array_equal(by_stretch(values, ids), [[3, 3, 3, 15, 15, 15], [5, 5, 5, 5, 5, 1]])
    weight = jnp.asarray([[1.0, 10, 100, 1, 10, 100], [1, 2, 3, 4, 5, 6]])
    gradient = jax.grad(lambda x: jnp.sum(by_stretch(x, ids) * weight))(values)
    np.testing.assert_array_equal(gradient, [[11, 11, 100, 111, 111, 111], [15, 15, 15, 15, 15, 6]])


def test_places_are_selected_and_their_gradient_goes_back_to_them() -> None:
    rng = np.random.default_rng(1)
    values = jnp.asarray(rng.normal(size=(3, 6, 2)), jnp.float32)
    places = jnp.asarray([[0, 2, 3, 5], [1, 4, 6, 6], [6, 6, 6, 6]])
    weight = jnp.asarray(rng.normal(size=(3, 4, 2)), jnp.float32)
    trained = (places < 6)[..., None]
    selected = select_places(values, places)
    expected = np.zeros((3, 6, 2))
    for row in range(3):
        for n, place in enumerate(np.asarray(places[row])):
            if place < 6:
                np.testing.assert_array_equal(selected[row, n], values[row, place])
                expected[row, place] = weight[row, n]
    gradient = jax.grad(lambda x: jnp.sum(jnp.where(trained, select_places(x, places) * weight, 0)))(values)
    np.testing.assert_array_equal(gradient, expected.astype(np.float32))


def test_a_gpu_gets_the_gradient_of_an_embedding_without_a_scatter() -> None:
    rng = np.random.default_rng(2)
    table, ids = jnp.asarray(rng.normal(size=(11, 4)), jnp.bfloat16), jnp.asarray(rng.integers(0, 11, (2, 300)))
    weight = jnp.asarray(rng.normal(size=(2, 300, 4)), jnp.bfloat16)

    def gradient(hardware: Hardware) -> jax.Array:
        return jax.jit(jax.grad(lambda t: jnp.sum((embed(t, ids, hardware) * weight).astype(jnp.float32))))(table)

    gpu, cpu = (np.asarray(gradient(hardware), np.float32) for hardware in (Hardware("gpu", None, 9.0), CPU))
    np.testing.assert_allclose(gpu, cpu, atol=2**-5)  # of sums up to 40, rounded to bf16 once
    assert np.mean(gpu == cpu) > 0.9
