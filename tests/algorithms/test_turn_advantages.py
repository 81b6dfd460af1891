"""Numbers by hand, and against plain loops in the standard library."""

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.algorithms.credit_assignment import batch_advantages
from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import turn_advantages
from rljax.config.schema import AlgorithmConfig
from rljax.trajectory import Group, TaskId, Trajectory


def episode(rewards: list[float], states: list[str] | None = None) -> Trajectory:
    """Each turn is a token of text and two of the model's."""
    turns = np.array([[3 * k + 1, 3 * k + 3] for k in range(len(rewards))], np.int32).reshape(-1, 2)
    mask = np.zeros(3 * len(rewards), np.bool_)
    for start, end in turns:
        mask[start:end] = True
    return Trajectory(
        token_ids=np.arange(len(mask), dtype=np.int32),
        loss_mask=mask,
        logprobs=np.zeros(len(mask), np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turns=turns,
        reward=float(sum(rewards)),
        turn_rewards=np.array(rewards, np.float64),
        turn_states=tuple(states) if states is not None else ("",) * len(rewards),
    )


def group(*episodes: Trajectory, tag: str = "lake") -> Group:
    return Group(TaskId(tag, 0, 0), episodes)


def estimate(name: str, groups: list[Group], **keys: object) -> np.ndarray:
    return turn_advantages.bound(name, keys)(TurnRewards.of(groups))


def test_agentic_reinforce_by_hand() -> None:
    groups = [group(episode([0.0, -0.1, 1.0]), episode([2.0]))]
    # 1; -0.1 + 0.5·1 = 0.4; 0 + 0.5·0.4 = 0.2
    np.testing.assert_allclose(estimate("agentic_reinforce", groups, gamma=0.5)[0, 0], [0.2, 0.4, 1.0])
    np.testing.assert_allclose(estimate("agentic_reinforce", groups)[0, 1, 0], 2.0)


def test_step_reinforce_by_hand() -> None:
    groups = [group(episode([0.0, 1.0]), episode([0.0]), tag="a"), group(episode([4.0]), episode([0.0]), tag="b")]
    # returns at γ = 0.5: 0.5, 1 and 0: mean 0.5, unbiased std 0.5
    got = estimate("step_reinforce", groups, gamma=0.5)
    np.testing.assert_allclose(got[0, 0], [0.0, 1.0], atol=1e-5)
    np.testing.assert_allclose(got[0, 1, 0], -1.0, rtol=1e-5)
    # 4 and 0: mean 2, std √8
    np.testing.assert_allclose(got[1, :, 0], [8**-0.5 * 2, -(8**-0.5) * 2], rtol=1e-5)
    batch = estimate("step_reinforce", groups, gamma=0.5, grouping="batch")
    # 0.5, 1, 0, 4, 0: mean 1.1, unbiased variance (0.36 + 0.01 + 1.21 + 8.41 + 1.21) / 4 = 2.8
    np.testing.assert_allclose(batch[1, 0, 0], 2.9 / 2.8**0.5, rtol=1e-5)


def test_gigpo_by_hand() -> None:
    groups = [
        group(
            episode([0.0, 1.0], ["start", "left"]),
            episode([0.0, 0.0], ["start", "right"]),
            episode([0.0], ["start"]),
        )
    ]
    got = estimate("gigpo", groups, gamma=0.5, step_weight=2.0, episode_weight=3.0)
    # scores 1, 0, 0: mean 1/3, std 1/√3 -> 2/√3, -1/√3, -1/√3; the first turns' returns are 0.5, 0, 0: the same
    high, low = 2 * 3**-0.5, -(3**-0.5)
    np.testing.assert_allclose(got[0, 0], [(3 + 2) * high, 3 * high], rtol=1e-4)  # "left" was met once
    np.testing.assert_allclose(got[0, 1], [(3 + 2) * low, 3 * low], rtol=1e-4)
    np.testing.assert_allclose(got[0, 2, 0], (3 + 2) * low, rtol=1e-4)


def test_gigpo_compares_no_turns_of_different_groups() -> None:
    groups = [group(episode([1.0], ["s"]), episode([1.0], ["t"])), group(episode([0.0], ["s"]), episode([0.0], ["s"]))]
    np.testing.assert_array_equal(estimate("gigpo", groups), np.zeros((2, 2, 1)))


def test_gigpo_needs_states() -> None:
    with pytest.raises(ValueError, match="some turns have none"):
        estimate("gigpo", [group(episode([1.0], []), episode([0.0], []))])


def test_groups_of_different_sizes_are_compared_with_each_other() -> None:
    groups = [
        group(episode([0.0]), episode([0.0]), episode([3.0]), tag="a"),
        group(episode([1.0]), tag="a"),
        group(episode([9.0]), episode([7.0]), tag="b"),
    ]
    # of "a": mean 1, unbiased variance (1 + 1 + 4 + 0)/3 = 2; of "b": mean 8, variance 2
    of_tag = [-(2**-0.5), -(2**-0.5), 2 * 2**-0.5, 0.0, 2**-0.5, -(2**-0.5)]
    # of all six: mean 10/3, sum of squares 140 - 6·100/9 = 220/3, variance 44/3
    of_batch = [(r - 10 / 3) / (44 / 3) ** 0.5 for r in (0, 0, 3, 1, 9, 7)]
    for name, keys in (("step_reinforce", {}), ("gigpo", {"step_weight": 0.0})):
        for grouping, expected in (("tag", of_tag), ("batch", of_batch)):
            config = AlgorithmConfig(adv_estimator=name, advantage={"grouping": grouping, **keys})
            found = batch_advantages(groups, config)
            np.testing.assert_allclose([one[-1] for one in found], expected, rtol=1e-5)


EPISODES = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.mark.parametrize("grouping", ["group", "tag", "batch"])
@pytest.mark.parametrize("name", ["step_reinforce", "gigpo"])
@settings(deadline=None)
@given(st.lists(EPISODES, min_size=1, max_size=4))
def test_against_plain_loops(name: str, grouping: str, rewards: list) -> None:
    groups = [
        group(*(episode([float(r) for r in e], [str(k % 2) for k in range(len(e))]) for e in g), tag=str(n % 2))
        for n, g in enumerate(rewards)
    ]
    got = estimate(name, groups, gamma=0.5, grouping=grouping)

    def returns(of: list[int]) -> list[float]:
        return [sum(0.5 ** (j - k) * of[j] for j in range(k, len(of))) for k in range(len(of))]

    def norm(value: float, among: list[float]) -> float:
        if len(among) < 2 or len(set(among)) == 1:
            return 0.0
        return (value - statistics.fmean(among)) / (statistics.stdev(among) + 1e-6)

    for g, members in enumerate(rewards):
        alike = {"group": lambda o, g=g: o == g, "tag": lambda o, g=g: o % 2 == g % 2, "batch": lambda o: True}[
            grouping
        ]
        together = [e for o, others in enumerate(rewards) if alike(o) for e in others]
        for m, e in enumerate(members):
            for k, value in enumerate(returns(e)):
                if name == "gigpo":
                    same = [v for o in members for j, v in enumerate(returns(o)) if j % 2 == k % 2]
                    expected = norm(float(sum(e)), [float(sum(o)) for o in together]) + norm(value, same)
                else:
                    expected = norm(value, [v for o in together for v in returns(o)])
                np.testing.assert_allclose(got[g, m, k], expected, atol=1e-6)


def test_every_token_of_a_turn_has_its_advantage() -> None:
    groups = [group(episode([0.0, 1.0]), episode([3.0]))]
    first, second = batch_advantages(
        groups, AlgorithmConfig(adv_estimator="agentic_reinforce", advantage={"gamma": 0.5})
    )
    np.testing.assert_allclose(first, [0, 0.5, 0.5, 0, 1, 1])
    np.testing.assert_allclose(second, [0, 3, 3])


def test_a_whole_score_is_that_of_every_turn() -> None:
    groups = [group(episode([0.0, 1.0]), episode([3.0]))]
    first, second = batch_advantages(groups, AlgorithmConfig(adv_estimator="rloo"))
    np.testing.assert_allclose(first, [0, -2, -2, 0, -2, -2])
    np.testing.assert_allclose(second, [0, 2, 2])


def test_whitening_and_clipping_by_hand() -> None:
    groups = [group(episode([0.0, 1.0]), episode([3.0]))]
    keys: dict[str, Any] = {
        "adv_estimator": "agentic_reinforce",
        "advantage": {"gamma": 0.5},
        "whiten_advantages": True,
    }
    first, second = batch_advantages(groups, AlgorithmConfig(**keys))
    # tokens 0.5, 0.5, 1, 1, 3, 3: mean 1.5, sum of squares 2·(1 + 0.25 + 2.25) = 7, unbiased variance 7/5
    deviation = 1.4**0.5
    np.testing.assert_allclose(first, [0, *[-1 / deviation] * 2, 0, *[-0.5 / deviation] * 2], rtol=1e-5)
    np.testing.assert_allclose(second, [0, *[1.5 / deviation] * 2], rtol=1e-5)
    first, second = batch_advantages(groups, AlgorithmConfig(**keys, advantage_clip=0.5))
    np.testing.assert_allclose(first, [0, -0.5, -0.5, 0, *[-0.5 / deviation] * 2], rtol=1e-5)
    np.testing.assert_allclose(second, [0, 0.5, 0.5])


def test_equal_advantages_are_whitened_to_nothing() -> None:
    keys: dict[str, Any] = {"adv_estimator": "agentic_reinforce", "whiten_advantages": True}
    (only,) = batch_advantages([group(episode([2.0]))], AlgorithmConfig(**keys))
    np.testing.assert_array_equal(only, [0, 0, 0])
