"""The critic's loss against its formula in float64: value and gradient by the value of every trained target."""

from __future__ import annotations

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.learner.critic import ValueObjective
from rljax.learner.objective import Progress
from rljax.learner.packing import Batch, Scores
from tests.learner.made_up import ARCHITECTURE, make_config
from tests.learner.test_aux_state import critic

ROWS, TIME = 3, 8
STEP = 1e-8


class OfValues(ValueObjective):
    """Its parameters are the values themselves."""

    def values(self, params: jax.Array, batch: Batch) -> jax.Array:  # type: ignore[override]
        return params


def made_up(seed: int, density: float) -> tuple[Batch, np.ndarray, np.ndarray]:
    """A microbatch with nonsense for the returns of demonstrations; values; which of them the critic learns."""
    rng = np.random.default_rng(seed)
    mask, expert = rng.random((ROWS, TIME)) < density, rng.random((ROWS, TIME)) < 0.2
    places = np.sort(np.where(mask, np.arange(TIME), TIME), axis=1)
    floats = {name: rng.normal(0, 1, (ROWS, TIME)) for name in ("returns", "weights")}
    floats["returns"][~mask | expert] = 1e30
    nothing = {f.name: np.zeros((ROWS, TIME)) for f in fields(Batch)}
    before = rng.normal(0, 1, (ROWS, TIME))
    given = floats | {"mask": mask, "expert": expert, "places": places, "scores": Scores(values=before)}
    sampled = (places < TIME) & ~np.take_along_axis(expert, np.minimum(places, TIME - 1), axis=1)
    return Batch(**(nothing | given)), before + rng.normal(0, 0.5, (ROWS, TIME)), sampled


def by_formula(values: np.ndarray, batch: Batch, sampled: np.ndarray, clip: float | None) -> np.longdouble:
    total = np.longdouble(0)
    assert batch.returns is not None
    assert batch.scores.values is not None
    for row, place in zip(*np.nonzero(sampled), strict=True):
        at = batch.places[row, place]
        v, old, r = values[row, place], batch.scores.values[row, place], batch.returns[row, at]
        error = (v - r) ** 2
        if clip is not None:
            error = max(error, (min(max(v, old - clip), old + clip) - r) ** 2)
        total += batch.weights[row, at] * error / 2
    return total


@pytest.mark.parametrize("clip", [None, 0.3])
@settings(max_examples=10, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), density=st.sampled_from([0.6, 1.0, 0.0]))
def test_value_and_gradient(clip: float | None, seed: int, density: float) -> None:
    batch, values, sampled = made_up(seed, density)
    config = make_config(algorithm={"adv_estimator": "gae", "critic": critic(value_clip=clip)})
    objective = OfValues(config, ARCHITECTURE, lambda x, *_: x)
    with jax.enable_x64(True):
        placed = jax.tree.map(jnp.asarray, batch)
        loss = lambda v: objective.microbatch_loss(v, placed, Progress())[0]  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(jnp.asarray(values))
    np.testing.assert_allclose(value, float(by_formula(values, batch, sampled, clip)), rtol=1e-12)
    expected = np.zeros(values.shape)
    for at in zip(*np.nonzero(sampled), strict=True):
        up, down = values.astype(np.longdouble), values.astype(np.longdouble)
        up[at] += STEP
        down[at] -= STEP
        slope = by_formula(up, batch, sampled, clip) - by_formula(down, batch, sampled, clip)
        expected[at] = slope / (2 * STEP)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9)
