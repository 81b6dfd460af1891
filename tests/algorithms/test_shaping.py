"""Stages of shaping by themselves, by hand and against the standard library."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.algorithms.inputs import TokenRewards
from rljax.algorithms.shaping import (
    NO_REWARDS,
    RunningMoments,
    kept_tokens,
    normalise,
    overlong_penalty,
    shape_rewards,
    whiten_rewards,
    whitened,
)
from rljax.config.schema import AlgorithmConfig
from tests.algorithms.builders import answer, answers, episode, group

FLOATS = st.lists(st.floats(-100, 100, allow_subnormal=False), max_size=6)


@given(st.lists(FLOATS, max_size=5))
def test_moments_merged_batch_by_batch_are_those_of_all(batches: list[list[float]]) -> None:
    moments = NO_REWARDS
    for batch in batches:
        moments = moments.after(np.array(batch, np.float64))
    every = [x for batch in batches for x in batch]
    assert moments.count == len(every)
    if every:
        np.testing.assert_allclose(moments.mean, statistics.fmean(every), atol=1e-9)
    deviation = statistics.stdev(every) if len(every) > 1 else 0.0
    np.testing.assert_allclose(moments.deviation, deviation, rtol=1e-6, atol=1e-6)


def test_moments_of_equal_rewards_have_no_spread() -> None:
    moments = NO_REWARDS.after(np.full(3, 0.1)).after(np.full(7, 0.1))
    assert moments == RunningMoments(10, 0.1, 0.0)
    assert moments.deviation == 0


def test_moments_by_hand() -> None:
    # 1, 3 and then 5, 7: mean 4, squares 9 + 1 + 1 + 9
    assert RunningMoments(2, 2.0, 2.0).after(np.array([5.0, 7.0])) == RunningMoments(4, 4.0, 20.0)


GROUPS = [answers(0.0, 2.0, tag="a"), answers(4.0, tag="a"), answers(1.0, 1.0, tag="b")]
REWARDS = np.array([0.0, 2.0, 4.0, 1.0, 1.0])
R2 = 2**0.5
SEEN = RunningMoments(4, 3.0, 12.0)  # deviation 2

CASES = [
    # each by its group: mean 1, 4, 1; deviation √2, none, none
    ("group", None, [-1, 1, 0, 0, 0]),
    ("group", "group", [-1 / R2, 1 / R2, 0, 0, 0]),
    (None, "group", [0, 2 / R2, 4, 1, 1]),
    # tasksets: a: mean 2, deviation 2; b: 1, none
    ("tag", "tag", [-1, 0, 1, 0, 0]),
    # all: mean 8/5, squares 0, 4, 16, 1, 1: 22 - 64/5 = 46/5, variance 23/10
    ("batch", None, [-1.6, 0.4, 2.4, -0.6, -0.6]),
    (None, "batch", [0, 2 / 2.3**0.5, 4 / 2.3**0.5, 1 / 2.3**0.5, 1 / 2.3**0.5]),
    # chosen apart: the flat ones give 0 although the mean is another one's
    ("batch", "group", [-1.6 / R2, 0.4 / R2, 0, 0, 0]),
    ("running", "running", [-1.5, -0.5, 0.5, -1, -1]),
    (None, "running", [0, 1, 2, 0.5, 0.5]),
    ("running", None, [-3, -1, 1, -2, -2]),
    (None, None, [0, 2, 4, 1, 1]),
]


@pytest.mark.parametrize(("mean", "std", "expected"), CASES)
def test_normalisation_by_hand(mean: str | None, std: str | None, expected: list[float]) -> None:
    config = AlgorithmConfig(norm_mean=mean, norm_std=std)
    got, scales = normalise(REWARDS, GROUPS, config, SEEN)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-12)
    assert scales.shape == (5,)
    if mean is None:
        np.testing.assert_allclose(got, REWARDS * scales)


@pytest.mark.parametrize("scope", ["group", "tag", "batch"])
def test_a_spread_that_rounding_made_is_none(scope: str) -> None:
    near = np.array([0.3, 0.1 + 0.2])
    for mean, expected in ((None, near), (scope, [0, 0])):
        config = AlgorithmConfig(norm_mean=mean, norm_std=scope)
        np.testing.assert_array_equal(normalise(near, [answers(*near)], config, NO_REWARDS)[0], expected)


def test_turn_rewards_still_add_up_to_the_score() -> None:
    members = group(episode([(1, 1, 1.0), (1, 1, 3.0)]), episode([(1, 1, 0.0)]), answer(2.0))
    config = AlgorithmConfig(norm_mean="group", norm_std="group")
    (shaped,), _ = shape_rewards([members], config, NO_REWARDS, None)
    # 4, 0, 2: mean 2, deviation 2: 1, -1, 0; turns 1/2, and 3/2 less the mean's share of 1
    np.testing.assert_allclose([t.reward for t in shaped.trajectories], [1, -1, 0], atol=1e-6)
    np.testing.assert_allclose(shaped.trajectories[0].turn_rewards, [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(shaped.trajectories[1].turn_rewards, [-1], atol=1e-6)
    assert len(shaped.trajectories[2].turn_rewards) == 0
    (clipped,), _ = shape_rewards([members], AlgorithmConfig(reward_clip=2.5), NO_REWARDS, None)
    np.testing.assert_allclose(clipped.trajectories[0].turn_rewards, [1, 1.5])
    np.testing.assert_allclose([t.reward for t in clipped.trajectories], [2.5, 0, 2])


def test_rewards_are_clipped_either_way() -> None:
    (shaped,), _ = shape_rewards([answers(-9.0, -1.0, 9.0)], AlgorithmConfig(reward_clip=2.0), NO_REWARDS, None)
    assert [t.reward for t in shaped.trajectories] == [-2, -1, 2]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (5, 0), (6, 0), (7, 0.5), (8, 1.0), (9, 1.5), (10, 2.0), (12, 2.0)]
)
def test_the_soft_penalty_of_dapo(tokens: int, expected: float) -> None:
    config = AlgorithmConfig(overlong="penalty", overlong_buffer=4, overlong_penalty=2.0)
    assert overlong_penalty(answer(1.0, tokens), config, 10) == expected
    assert overlong_penalty(episode([(1, 2, 0.0), (20, tokens, 0.0), (1, 1, 0.0)]), config, 10) == expected


@pytest.mark.parametrize("reason", ["stop", "length", "done", "sequence_length", "max_turns"])
@pytest.mark.parametrize("overlong", ["keep", "mask", "penalty"])
def test_only_what_a_budget_cut_off_is_masked(reason: str, overlong: str) -> None:
    kept = kept_tokens(answer(1.0, finish_reason=reason), AlgorithmConfig(overlong=overlong), None)
    cut = overlong == "mask" and reason in ("length", "sequence_length")
    assert kept.tolist() == [False, not cut, not cut]


@pytest.mark.parametrize(
    ("limit", "kept"), [(0, [0, 0, 0, 1]), (1, [0, 0, 1, 1]), (2, [0, 1, 1, 1]), (9, [0, 1, 1, 1])]
)
def test_a_token_may_be_as_stale_as_the_limit(limit: int, kept: list[int]) -> None:
    mixed = episode([(1, 3, 1.0)], versions=np.array([-1, 5, 6, 7], np.int32))
    assert kept_tokens(mixed, AlgorithmConfig(drop_staler_than=limit), 7).tolist() == [bool(k) for k in kept]


def test_token_rewards_are_scaled_over_sampled_tokens() -> None:
    mask = np.array([[True, True], [True, False]])
    # 0, 2, 4: unbiased deviation 2
    got = whiten_rewards(TokenRewards(np.array([[0.0, 2.0], [4.0, 0.0]]), mask))
    np.testing.assert_allclose(got.rewards, [[0, 1], [2, 0]], rtol=1e-5)


@pytest.mark.parametrize("rewards", [[[3.0, 0.0]], [[0.3, 0.1 + 0.2]]])
def test_token_rewards_without_spread_stay(rewards: list) -> None:
    mask = np.array(rewards) != 0
    np.testing.assert_array_equal(whiten_rewards(TokenRewards(np.array(rewards), mask)).rewards, rewards)


def test_advantages_are_whitened_over_the_mask() -> None:
    values = [np.array([99.0, 0.0, 2.0]), np.array([4.0, 99.0])]
    masks = [np.array([False, True, True]), np.array([True, False])]
    got = whitened(values, masks)
    np.testing.assert_allclose(got[0], [0, -1, 0], atol=1e-5)
    np.testing.assert_allclose(got[1], [1, 0], atol=1e-5)
    every = [np.ones(2, np.bool_)]
    np.testing.assert_array_equal(whitened([np.array([5.0])], [every[0][:1]])[0], [5.0])
    # as good as equal: the least informative batch must not make the largest step
    np.testing.assert_allclose(whitened([np.array([0.3, 0.1 + 0.2])], every)[0], [0.0, 0.0], atol=1e-15)
    np.testing.assert_array_equal(whitened([np.array([1.0, 1.0])], every)[0], [0.0, 0.0])
