"""Numbers by hand, and the recursions against their sums."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.algorithms.inputs import TokenRewards
from rljax.algorithms.registry import token_advantages
from tests.algorithms.builders import episode

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


def laid(rewards: list[list[float]], values: list[list[float]] | None = None) -> TokenRewards:
    """Rows of different lengths; beyond them values lie that must not be read."""
    width = max(map(len, rewards), default=0)
    mask = np.array([[t < len(row) for t in range(width)] for row in rewards], np.bool_).reshape(len(rewards), width)

    def padded(rows: list[list[float]], filling: float) -> np.ndarray:
        return np.array([[*row, *[filling] * (width - len(row))] for row in rows], np.float64).reshape(mask.shape)

    return TokenRewards(padded(rewards, 0.0), mask, None if values is None else padded(values, 99.0))


def estimate(name: str, scored: TokenRewards, **keys: float) -> tuple[np.ndarray, np.ndarray]:
    return token_advantages.bound(name, keys)(scored)


def test_reinforce_by_hand() -> None:
    found, returns = estimate("reinforce", laid([[0, 1, 4], [2]]), gamma=0.5)
    # 4; 1 + 4/2 = 3; 0 + 3/2
    np.testing.assert_array_equal(found, [[1.5, 3, 4], [2, 0, 0]])
    np.testing.assert_array_equal(returns, found)


def test_a_reward_reaches_earlier_turns_and_the_text_between_is_not_discounted_over() -> None:
    """ROLL would discount over the 3 tokens of text too, and verl would give the first turn nothing."""
    scored = TokenRewards.of([episode([(1, 2, 0.0), (3, 2, 8.0)])])
    # 8; 8/2 = 4 in the last turn; 4/2 = 2 and 2/2 = 1 in the first
    np.testing.assert_array_equal(estimate("reinforce", scored, gamma=0.5)[0], [[1, 2, 4, 8]])
    np.testing.assert_array_equal(estimate("reinforce++", scored, gamma=0.5)[1], [[1, 2, 4, 8]])


def test_reinforce_plus_plus_by_hand() -> None:
    found, returns = estimate("reinforce++", laid([[0, 2], [-1]]))
    # returns 2, 2, -1: mean 1, unbiased variance (1 + 1 + 4)/2 = 3
    np.testing.assert_allclose(found, [[3**-0.5, 3**-0.5], [-2 * 3**-0.5, 0]], rtol=1e-5)
    np.testing.assert_array_equal(returns, [[2, 2], [-1, 0]])


def test_gae_by_hand() -> None:
    scored = laid([[0, 1], [2]], [[1, 2], [0.5]])
    found, returns = estimate("gae", scored, gamma=0.5, lambd=0.5)
    # δ: 0 + 2/2 - 1 = 0 and 1 - 2 = -1; A: 0 - 1/4 and -1; the second row: 2 - 1/2
    np.testing.assert_allclose(found, [[-0.25, -1], [1.5, 0]])
    np.testing.assert_allclose(returns, [[0.75, 1], [2, 0]])


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_gae_against_its_sum(lengths: list[int], seed: int, gamma: float, lambd: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = ([rng.normal(size=n).tolist() for n in lengths] for _ in range(2))
    found, returns = estimate("gae", laid(rewards, values), gamma=gamma, lambd=lambd)
    for row, (r, v) in enumerate(zip(rewards, values, strict=True)):
        deltas = [r[t] + gamma * (v[t + 1] if t + 1 < len(r) else 0.0) - v[t] for t in range(len(r))]
        for t in range(len(r)):
            expected = sum((gamma * lambd) ** (s - t) * deltas[s] for s in range(t, len(r)))
            np.testing.assert_allclose(found[row, t], expected, atol=1e-12)
            np.testing.assert_allclose(returns[row, t], expected + v[t], atol=1e-12)


@given(LENGTHS, st.integers(0, 2**32), st.sampled_from([0.5, 1.0]))
def test_gae_at_lambda_one_is_the_return_less_the_value(lengths: list[int], seed: int, gamma: float) -> None:
    """Schulman et al. 2016, equation 18."""
    rng = np.random.default_rng(seed)
    rewards, values = ([rng.normal(size=n).tolist() for n in lengths] for _ in range(2))
    found, returns = estimate("gae", laid(rewards, values), gamma=gamma, lambd=1.0)
    for row, (r, v) in enumerate(zip(rewards, values, strict=True)):
        for t in range(len(r)):
            whole = sum(gamma ** (s - t) * r[s] for s in range(t, len(r)))
            np.testing.assert_allclose([found[row, t], returns[row, t]], [whole - v[t], whole], atol=1e-12)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]))
def test_reinforce_plus_plus_against_the_standard_library(lengths: list[int], seed: int, gamma: float) -> None:
    rewards = [np.random.default_rng(seed + i).normal(size=n).tolist() for i, n in enumerate(lengths)]
    found, _ = estimate("reinforce++", laid(rewards), gamma=gamma)
    sums = [[sum(gamma ** (s - t) * r[s] for s in range(t, len(r))) for t in range(len(r))] for r in rewards]
    every = [value for row in sums for value in row]
    for row, of in enumerate(sums):
        for t, value in enumerate(of):
            expected = (value - statistics.fmean(every)) / (statistics.stdev(every) + 1e-6) if len(every) > 1 else 0
            np.testing.assert_allclose(found[row, t], expected, atol=1e-9)


@pytest.mark.parametrize("rewards", [[[2.0]], [[0.1], [0.1], [0.1]], [[]], [[0.0, 3.0], [3.0]]])
def test_equal_returns_whiten_to_zero(rewards: list) -> None:
    found, _ = estimate("reinforce++", laid(rewards))
    assert not found.any()


def test_sampled_tokens_lie_side_by_side() -> None:
    first = episode([(2, 2, 1.0), (1, 1, 3.0)])
    second = episode([(1, 1, 5.0)])
    charges = [np.array([9, 9, 0.25, 0.5, 9, 0.125]), np.array([9.0, 1.0])]
    values = [np.array([9, 9, 1.0, 2.0, 9, 3.0]), np.array([9.0, 4.0])]
    scored = TokenRewards.of([first, second], charges, values)
    np.testing.assert_array_equal(scored.mask, [[1, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(scored.rewards, [[-0.25, 0.5, 2.875], [4, 0, 0]])
    np.testing.assert_array_equal(scored.values, [[1, 2, 3], [4, 0, 0]])
    back = scored.by_place([first, second], scored.values)
    np.testing.assert_array_equal(back[0], [0, 0, 1, 2, 0, 3])
    np.testing.assert_array_equal(back[1], [0, 4])


def test_the_reward_of_a_turn_without_tokens_is_not_lost() -> None:
    between = episode([(1, 2, 1.0), (1, 0, 10.0), (1, 1, 100.0), (1, 0, 1000.0)])
    first = episode([(1, 0, 1.0), (1, 2, 10.0)])
    nothing = episode([(1, 0, 1.0)])
    scored = TokenRewards.of([between, first, nothing])
    np.testing.assert_array_equal(scored.rewards, [[0, 11, 1100], [1, 10, 0], [0, 0, 0]])
    assert scored.values is None


def test_no_trajectory_at_all() -> None:
    scored = TokenRewards.of([], [], [])
    assert scored.rewards.shape == scored.mask.shape == (0, 0)
    for name in token_advantages.names():
        found, returns = estimate(name, scored)
        assert found.shape == returns.shape == (0, 0)
