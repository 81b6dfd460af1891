import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljax.algorithms.registry import aggregations

LOSSES = [np.array([1.0, 2.0, 6.0]), np.array([10.0]), np.zeros(0), np.array([4.0, 0.0])]
BUDGET = 8


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", 23 / 6),
        ("seq-mean-token-mean", (3 + 10 + 2) / 3),  # the trajectory without tokens is not counted
        ("seq-mean-token-sum", (9 + 10 + 4) / 3),
        ("seq-mean-token-sum-norm", (9 + 10 + 4) / 3 / BUDGET),
    ],
)
def test_weights_give_the_mean_that_the_name_says(name: str, expected: float) -> None:
    weights = aggregations.bound(name)(np.array([len(loss) for loss in LOSSES]), BUDGET)
    assert weights.shape == (4,)
    total = sum(w * loss.sum() for w, loss in zip(weights, LOSSES, strict=True))
    assert total == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", aggregations.names())
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0], [1]])
def test_nothing_trained_is_no_division_by_zero(name: str, counts: list[int]) -> None:
    weights = aggregations.bound(name)(np.array(counts, np.int64), BUDGET)
    assert weights.shape == (len(counts),)
    assert np.isfinite(weights).all()


def by_definition(name: str, losses: list[list[Fraction]], budget: int) -> Fraction:
    """The mean that the name says of the losses of each trajectory's trained tokens, exactly."""
    trained = [one for one in losses if one]
    if not trained:
        return Fraction(0)
    tokens = [loss for one in trained for loss in one]
    return {
        "token-mean": sum(tokens) / Fraction(len(tokens)),
        "seq-mean-token-mean": sum(sum(one) / Fraction(len(one)) for one in trained) / len(trained),
        "seq-mean-token-sum": Fraction(sum(tokens)) / len(trained),
        "seq-mean-token-sum-norm": Fraction(sum(tokens)) / len(trained) / budget,
    }[name]


BUILT_IN = [n for n in aggregations.names() if aggregations.get(n).__module__.startswith("rljax.")]


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9).map(Fraction), max_size=5), max_size=5), st.integers(1, 9))
@example([[Fraction(3)]], BUDGET)
@example([[], [Fraction(3)], []], BUDGET)
@example([[], []], BUDGET)
def test_value_and_gradient(name: str, losses: list[list[Fraction]], budget: int) -> None:
    """A mean is linear, so the derivative by a token's loss is what a loss that is larger by 1 adds."""
    weights = aggregations.bound(name)(np.array([len(one) for one in losses], np.int64), budget)
    value = by_definition(name, losses, budget)
    found = math.fsum(w * float(loss) for w, one in zip(weights, losses, strict=True) for loss in one)
    assert found == pytest.approx(float(value), rel=1e-12, abs=1e-12)
    for index, one in enumerate(losses):
        for place in range(len(one)):
            moved = [list(other) for other in losses]
            moved[index][place] += 1
            assert weights[index] == pytest.approx(float(by_definition(name, moved, budget) - value), rel=1e-12)
