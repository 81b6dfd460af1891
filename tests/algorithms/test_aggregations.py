import numpy as np
import pytest

from rljax.algorithms import aggregations

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
    weights = aggregations.get(name)(np.array([len(loss) for loss in LOSSES]), BUDGET)
    assert weights.shape == (4,)
    total = sum(w * loss.sum() for w, loss in zip(weights, LOSSES, strict=True))
    assert total == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", aggregations.names())
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0], [1]])
def test_nothing_trained_is_no_division_by_zero(name: str, counts: list[int]) -> None:
    weights = aggregations.get(name)(np.array(counts, np.int64), BUDGET)
    assert weights.shape == (len(counts),)
    assert np.isfinite(weights).all()
