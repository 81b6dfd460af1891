"""The correction of the train-inference gap against plain loops in float64, and at its bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rljax.algorithms.correction import correction
from rljax.config.schema import CorrectionConfig
from tests.algorithms.loss_batches import Cells, batches, random_cells
from tests.algorithms.loss_formulas import mean, of_span

REDUCE = {
    "token": ("token", mean),
    "turn": ("turn", mean),
    "geometric": ("sequence", mean),
    "sequence": ("sequence", sum),
}


def expected_weights(cells: Cells, level: str, proximal: bool, expert: bool) -> np.ndarray:
    sampled = cells.mask & ~cells.expert if expert else cells.mask
    trained = cells.proximal_logprobs if proximal else cells.logprobs
    cells = Cells(**{**vars(cells), "mask": sampled})
    with np.errstate(all="ignore"):
        gap = np.where(sampled, trained - cells.behaviour_logprobs, np.nan)
    span, reduce = REDUCE[level]
    return np.exp(of_span(gap, cells, span, reduce))


@pytest.mark.parametrize("level", REDUCE)
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("proximal", [False, True], ids=["current", "proximal"])
@pytest.mark.parametrize("expert", [False, True], ids=["sampled", "demonstrated"])
@settings(max_examples=6, derandomize=True, deadline=None)
@given(cells=batches())
def test_weights(level: str, mode: str, proximal: bool, expert: bool, cells: Cells) -> None:
    config = CorrectionConfig(level=level, mode=mode, low=0.7, high=1.4)
    with jax.enable_x64(True):
        inputs = cells.inputs(expert=expert, **({} if proximal else {"proximal_logprobs": None}))
        factor, metrics = correction(inputs, config)
    weight = expected_weights(cells, level, proximal, expert)
    inside = (weight >= 0.7) & (weight <= 1.4)
    wanted = np.minimum(weight, 1.4) if mode == "truncate" else inside.astype(float)
    clipped = weight > 1.4 if mode == "truncate" else ~inside
    np.testing.assert_allclose(factor, wanted, rtol=1e-6)
    np.testing.assert_allclose(metrics["correction_weight"], weight, rtol=1e-6)
    np.testing.assert_array_equal(metrics["correction_clipped"], clipped)


@pytest.mark.parametrize("level", REDUCE)
def test_it_is_a_constant(level: str) -> None:
    cells = random_cells(0)

    def total(logprobs: jax.Array) -> jax.Array:
        inputs = cells.inputs(logprobs, proximal_logprobs=None)
        return jnp.sum(correction(inputs, CorrectionConfig(level=level, high=1e9))[0])

    with jax.enable_x64(True):
        assert not np.asarray(jax.grad(total)(jnp.asarray(cells.logprobs))).any()


def test_none_is_one_everywhere() -> None:
    factor, metrics = correction(random_cells(1).inputs(), CorrectionConfig())
    assert (np.asarray(factor) == 1).all()
    assert metrics == {}


@pytest.mark.parametrize("level", REDUCE)
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_extremes_are_finite(level: str, mode: str) -> None:
    shape = (3, 10)
    cells = random_cells(2)
    behaviour = jnp.resize(jnp.array([-jnp.inf, -1.0, -jnp.inf, -1e6, 0.0]), shape)
    logprobs = jnp.resize(jnp.array([-1.0, -jnp.inf, -jnp.inf, 0.0, -1e6]), shape)
    inputs = cells.inputs(logprobs, behaviour_logprobs=behaviour, proximal_logprobs=None, mask=jnp.ones(shape, bool))
    factor, metrics = correction(inputs, CorrectionConfig(level=level, mode=mode))
    assert np.isfinite(np.asarray(factor)).all()
    assert np.isfinite(np.asarray(metrics["correction_weight"])).all()
    assert (np.asarray(factor) <= np.float32(1.2)).all()


def test_by_hand_and_on_the_bounds() -> None:
    """Two sequences, of ratios (2, ½, 1) and (2): a bound belongs to what is trained."""
    cells = random_cells(3)
    with jax.enable_x64(True):
        inputs = cells.inputs(
            jnp.log(jnp.array([[2.0, 0.5, 1.0, 2.0]])),
            behaviour_logprobs=jnp.zeros((1, 4)),
            proximal_logprobs=None,
            mask=jnp.ones((1, 4), bool),
            segment_ids=jnp.array([[1, 1, 1, 2]]),
            turn_ids=jnp.array([[0, 0, 1, 1]]),
        )

        def factors(level: str, mode: str) -> list[float]:
            return np.asarray(correction(inputs, CorrectionConfig(level=level, mode=mode, low=1.0))[0])[0].tolist()

        assert factors("token", "truncate") == pytest.approx([1.2, 0.5, 1, 1.2])
        assert factors("token", "mask") == [0, 0, 1, 0]
        assert factors("turn", "truncate") == pytest.approx([1, 1, 1, 1.2])
        assert factors("geometric", "mask") == [1, 1, 1, 0]
        assert factors("sequence", "truncate") == pytest.approx([1, 1, 1, 1.2])
