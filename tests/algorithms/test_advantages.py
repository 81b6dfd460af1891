import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.algorithms.registry import advantages

REWARDS = st.lists(
    st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=4, max_size=4), min_size=1, max_size=5
)


RELATIVE = ["grpo", "rloo", "dr_grpo", "opmd_mean", "opmd_logavgexp"]


def estimate(name: str, rewards: list, **keys: float) -> np.ndarray:
    return np.asarray(advantages.bound(name, keys)(np.array(rewards, np.float64)))


def test_grpo_by_hand() -> None:
    # group of 0, 0, 0, 1: mean 1/4, unbiased variance (3·1/16 + 9/16)/3 = 1/4, std 1/2
    np.testing.assert_allclose(estimate("grpo", [[0, 0, 0, 1]]), [[-0.5, -0.5, -0.5, 1.5]], rtol=1e-5)
    # 1 and 3: mean 2, std √2
    np.testing.assert_allclose(estimate("grpo", [[1, 3]]), [[-(2**-0.5), 2**-0.5]], rtol=1e-5)


def test_rloo_by_hand() -> None:
    np.testing.assert_allclose(estimate("rloo", [[0, 0, 0, 1]]), [[-1 / 3, -1 / 3, -1 / 3, 1]])
    np.testing.assert_allclose(estimate("rloo", [[1, 3], [5, 4]]), [[-2, 2], [1, -1]])


@pytest.mark.parametrize("name", RELATIVE)
def test_a_group_of_one_gives_zero(name: str) -> None:
    np.testing.assert_array_equal(estimate(name, [[3.0], [-1.0]]), [[0.0], [0.0]])


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1 / 3, 1e8])
@pytest.mark.parametrize("members", [2, 3, 8, 7])
def test_equal_rewards_give_exactly_zero(name: str, reward: float, members: int) -> None:
    # 0.1 three times has a mean that is not 0.1: rounding must not become an advantage
    np.testing.assert_array_equal(estimate(name, [[reward] * members]), np.zeros((1, members)))


@pytest.mark.parametrize("name", ["dr_grpo", "opmd_mean"])
def test_differences_from_the_mean_by_hand(name: str) -> None:
    np.testing.assert_allclose(estimate(name, [[0, 0, 0, 1], [1, 2, 3, 6]]), [[-0.25] * 3 + [0.75], [-2, -1, 0, 3]])


def test_opmd_logavgexp_by_hand() -> None:
    # at τ = 2: exp(R/τ) = 1, 1, 4; their mean is 2, so the baseline is 2·log 2
    got = estimate("opmd_logavgexp", [[0, 0, 2 * math.log(4)]], tau=2.0)
    np.testing.assert_allclose(got, [[-2 * math.log(2)] * 2 + [2 * math.log(2)]])


def test_opmd_logavgexp_between_its_limits() -> None:
    rewards = [[0.0, 1.0, 5.0]]
    hot, cold = (estimate("opmd_logavgexp", rewards, tau=tau) for tau in (1e6, 1e-3))
    np.testing.assert_allclose(hot, [[-2, -1, 3]], atol=1e-4)  # R - mean
    np.testing.assert_allclose(cold, [[-5, -4, 0]], atol=1e-2)  # R - max, and no exp(5000)
    np.testing.assert_allclose(estimate("opmd_logavgexp", [[-1e5, 1e5]]), [[-2e5 + math.log(2), math.log(2)]])


@given(REWARDS, st.floats(0.5, 100))
def test_opmd_logavgexp_against_its_definition(rewards: list[list[float]], tau: float) -> None:
    got = estimate("opmd_logavgexp", rewards, tau=tau)
    for row, values in zip(rewards, got, strict=True):
        baseline = tau * math.log(math.fsum(math.exp(r / tau) for r in row) / len(row))
        np.testing.assert_allclose(values, [r - baseline for r in row], rtol=1e-9, atol=1e-9)


@given(REWARDS)
def test_dr_grpo_against_its_definition(rewards: list[list[float]]) -> None:
    for row, values in zip(rewards, estimate("dr_grpo", rewards), strict=True):
        np.testing.assert_allclose(values, [r - statistics.fmean(row) for r in row], rtol=1e-9, atol=1e-9)


def test_remax_by_hand() -> None:
    got = advantages.bound("remax")(np.array([[1.0, 0.0], [2.0, 3.0]]), greedy=np.array([0.5, 2.0]))
    np.testing.assert_array_equal(got, [[0.5, -0.5], [0, 1]])


@given(REWARDS)
def test_grpo_against_the_standard_library(rewards: list[list[float]]) -> None:
    for row, values in zip(rewards, estimate("grpo", rewards), strict=True):
        mean, std = statistics.fmean(row), statistics.stdev(row)
        expected = [(r - mean) / (std + 1e-6) if len(set(row)) > 1 else 0.0 for r in row]
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)


@given(REWARDS)
def test_rloo_against_its_definition(rewards: list[list[float]]) -> None:
    for row, values in zip(rewards, estimate("rloo", rewards), strict=True):
        expected = [r - statistics.fmean(row[:i] + row[i + 1 :]) for i, r in enumerate(row)]
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9)
