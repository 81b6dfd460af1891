"""Experts against a plain reference: every expert computes every token, and what was not chosen counts nothing."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.common.experts import experts as mixtures
from rljax.models.common.experts.exchange import sends_choices
from rljax.models.common.experts.experts import mixture
from rljax.models.common.experts.grouped import body_for, grouped_product
from rljax.models.common.hardware import CPU, Hardware

BODIES = ["blocks", "ragged"]
BATCH, TIME, HIDDEN, WIDTH, EXPERTS, PICKED = 3, 37, 16, 24, 5, 2


def dense(x: Any, chosen: Any, gates: Any, weights: Any) -> jax.Array:
    """Reference: no sorting, no groups."""
    gate, up, down = weights
    with jax.default_matmul_precision("highest"):
        inner = jax.nn.silu(jnp.einsum("bth,ehf->btef", x, gate)) * jnp.einsum("bth,ehf->btef", x, up)
        every = jnp.einsum("btef,efh->bteh", inner, down)
    weight = jnp.sum(jax.nn.one_hot(chosen, gate.shape[0]) * gates[..., None], axis=2)
    return jnp.einsum("bteh,bte->bth", every, weight)


def routes(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Two different experts of each token."""
    scores = rng.random((BATCH, TIME, EXPERTS))
    if kind == "all to one":
        scores[..., 3] += 10
    if kind == "one gets nothing":
        scores[..., 0] -= 10
    if kind == "two get all":
        scores[..., [1, 4]] += 10
    return np.argsort(-scores, axis=-1)[..., :PICKED].astype(np.int32)


def inputs(kind: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    gates = rng.random((BATCH, TIME, PICKED)).astype(np.float32)
    shapes = [(EXPERTS, HIDDEN, WIDTH)] * 2 + [(EXPERTS, WIDTH, HIDDEN)]
    weights = tuple(rng.standard_normal(shape).astype(np.float32) / 4 for shape in shapes)
    return rng.standard_normal((BATCH, TIME, HIDDEN)).astype(np.float32), routes(kind, rng), gates, weights


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", ["even", "all to one", "one gets nothing", "two get all"])
def test_values_and_gradients_are_those_of_the_plain_reference(
    kind: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixtures, "grouped_product", functools.partial(grouped_product, body=body))
    x, chosen, gates, weights = inputs(kind)
    towards = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)

    def pulled(function: Any) -> Any:
        def run(x: Any, gates: Any, weights: Any) -> Any:
            found = function(x, chosen, gates, weights)
            return jnp.sum(found * towards), found

        return jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))(x, gates, weights)

    (_, found), gradients = pulled(lambda *arguments: mixture(*arguments, CPU))
    (_, expected), expected_gradients = pulled(dense)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    for gradient, reference in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True):
        np.testing.assert_allclose(gradient, reference, atol=1e-5 * np.abs(reference).max())
    counts = np.bincount(chosen.ravel(), minlength=EXPERTS)
    for expert in np.flatnonzero(counts == 0):
        assert not np.asarray(gradients[2][0])[expert].any(), "who gets nothing learns nothing"
    if kind == "all to one":
        assert counts[3] == BATCH * TIME


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("sizes", [[0, 0, 0], [40, 0, 0], [0, 0, 40], [1, 38, 1], [8, 16, 9], [3, 0, 2], [31]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_multiplied_with_the_matrix_of_their_group(sizes: list[int], body: str, dtype: str) -> None:
    """What no group has is 0."""
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.standard_normal((42, 6)), dtype)
    matrices = jnp.asarray(rng.standard_normal((len(sizes), 6, 5)), jnp.float32)
    bounds = np.cumsum([0, *sizes]).astype(np.int32)
    product = functools.partial(grouped_product, bounds=bounds, hardware=CPU, body=body)
    expected = np.zeros((42, 5))
    for group, (begin, end) in enumerate(itertools.pairwise(bounds)):
        expected[begin:end] = (
            np.asarray(rows, np.float64)[begin:end] @ np.asarray(matrices.astype(dtype), np.float64)[group]
        )
    found, pull = jax.vjp(product, rows, matrices)
    assert found.dtype == rows.dtype
    tolerance = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=tolerance)
    d_rows, d_matrices = pull(jnp.ones_like(found))
    assert (d_rows.dtype, d_matrices.dtype) == (rows.dtype, jnp.float32)
    sums = [np.asarray(rows, np.float64)[begin:end].sum(axis=0) for begin, end in itertools.pairwise(bounds)]
    np.testing.assert_allclose(d_matrices, np.repeat(np.stack(sums)[..., None], 5, axis=2), atol=tolerance)
    assert not np.asarray(d_rows, np.float32)[bounds[-1] :].any()


def test_sums_of_a_group_are_taken_in_float32() -> None:
    """A bfloat16 sum of ones stands still at 256."""
    rows, bounds = jnp.ones((1024, 1), jnp.bfloat16), np.array([0, 1024], np.int32)
    product = functools.partial(grouped_product, bounds=bounds, hardware=CPU, body="blocks")
    _, pull = jax.vjp(product, rows, jnp.ones((1, 1, 1), jnp.bfloat16))
    assert float(pull(jnp.ones((1024, 1), jnp.bfloat16))[1][0, 0, 0]) == 1024


def test_the_body_is_the_platforms() -> None:
    bodies = {platform: body_for(Hardware(platform)) for platform in ("cpu", "gpu", "tpu")}
    assert bodies == {"cpu": "blocks", "gpu": "blocks", "tpu": "ragged"}
    x, chosen, gates, weights = inputs("even")
    for platform, there in (("tpu", True), ("cpu", False), ("gpu", False)):
        run = functools.partial(mixture, hardware=Hardware(platform))
        traced = jax.make_jaxpr(jax.grad(lambda w, run=run: run(x, chosen, gates, w).sum()))(weights)
        assert ("ragged_dot" in str(traced)) == there
        assert "scatter" not in str(traced), "a GPU adds one number after the other there"


def test_choices_are_sent_where_that_is_less_than_all_tokens() -> None:
    """Each of k choices goes to one device; a gathered token goes to all of them."""
    chip = Hardware("tpu")
    assert sends_choices(chip, devices=8, picked=2)
    assert not sends_choices(chip, devices=8, picked=8)
    assert not sends_choices(CPU, devices=8, picked=2), "XLA has no such exchange for CPUs"
