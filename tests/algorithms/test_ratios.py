"""Spans of tokens, and the numbers that stand in for extremes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rljax.algorithms.ratios import bounded_exp, floored, log_difference
from rljax.algorithms.spans import span_mean, span_sum
from tests.algorithms.loss_batches import Cells, batches, random_cells
from tests.algorithms.loss_formulas import mean, of_span


@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
@settings(max_examples=10, derandomize=True, deadline=None)
@given(cells=batches())
def test_sums_and_means_of_spans(level: str, cells: Cells) -> None:
    with jax.enable_x64(True):
        values, inputs = jnp.asarray(cells.logprobs), cells.inputs()
        np.testing.assert_allclose(span_sum(values, inputs, level), of_span(cells.logprobs, cells, level, sum))
        np.testing.assert_allclose(span_mean(values, inputs, level), of_span(cells.logprobs, cells, level, mean))


def test_a_turn_that_goes_on_in_the_next_sequence_is_another() -> None:
    inputs = random_cells(0).inputs(
        mask=jnp.array([[True, True, False, True, True]]),
        segment_ids=jnp.array([[1, 1, 9, 1, 2]]),
        turn_ids=jnp.array([[7, 7, 0, 7, 7]]),
    )
    values = jnp.array([[1.0, 2.0, 100.0, 4.0, 8.0]])
    np.testing.assert_array_equal(span_sum(values, inputs, "turn"), [[7, 7, 0, 7, 8]])


def test_what_stands_in_for_extremes() -> None:
    infinite = jnp.array([-jnp.inf, -1.0, -jnp.inf, -200.0, -50.0])
    np.testing.assert_array_equal(floored(infinite), [-100, -1, -100, -100, -50])
    np.testing.assert_array_equal(floored(infinite, jnp.array([True, False, True, True, True]))[1], 0)
    old = jnp.array([-1.0, -jnp.inf, -jnp.inf, -100.0, -1e9])
    np.testing.assert_array_equal(log_difference(infinite, old), [-99, 99, 0, 0, 50])
    np.testing.assert_allclose(
        bounded_exp(jnp.array([-99.0, 99.0, 20.0, 1.0])), np.exp([-20.0, 20.0, 20.0, 1.0]), rtol=1e-6
    )
    slope = jax.grad(lambda x: jnp.sum(bounded_exp(x)))(jnp.array([-99.0, 99.0, 1.0]))
    np.testing.assert_allclose(slope, [0, 0, np.e], rtol=1e-6)
