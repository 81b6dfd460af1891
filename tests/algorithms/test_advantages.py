import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.algorithms import advantages
from rljax.config import AlgorithmConfig

CONFIG = AlgorithmConfig()
REWARDS = st.lists(
    st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=4, max_size=4), min_size=1, max_size=5
)


def estimate(name: str, rewards: list) -> np.ndarray:
    return np.asarray(advantages.get(name)(np.array(rewards, np.float64), CONFIG))


def test_grpo_by_hand() -> None:
    # group of 0, 0, 0, 1: mean 1/4, unbiased variance (3·1/16 + 9/16)/3 = 1/4, std 1/2
    np.testing.assert_allclose(estimate("grpo", [[0, 0, 0, 1]]), [[-0.5, -0.5, -0.5, 1.5]], rtol=1e-5)
    # 1 and 3: mean 2, std √2
    np.testing.assert_allclose(estimate("grpo", [[1, 3]]), [[-(2**-0.5), 2**-0.5]], rtol=1e-5)


def test_rloo_by_hand() -> None:
    np.testing.assert_allclose(estimate("rloo", [[0, 0, 0, 1]]), [[-1 / 3, -1 / 3, -1 / 3, 1]])
    np.testing.assert_allclose(estimate("rloo", [[1, 3], [5, 4]]), [[-2, 2], [1, -1]])


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_group_of_one_gives_zero(name: str) -> None:
    np.testing.assert_array_equal(estimate(name, [[3.0], [-1.0]]), [[0.0], [0.0]])


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1 / 3, 1e8])
@pytest.mark.parametrize("members", [2, 3, 8, 7])
def test_equal_rewards_give_exactly_zero(name: str, reward: float, members: int) -> None:
    # 0.1 three times has a mean that is not 0.1: rounding must not become an advantage
    np.testing.assert_array_equal(estimate(name, [[reward] * members]), np.zeros((1, members)))


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
