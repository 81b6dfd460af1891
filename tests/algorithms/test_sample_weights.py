import numpy as np
import pytest

from rljax.algorithms.sample_weights import sample_weights
from rljax.config.schema import AlgorithmConfig
from rljax.trajectory import Group
from tests.algorithms.builders import answer, answers, group


def weigh(groups: list[Group], *, untrained: tuple[int, ...] = (), **keys: bool) -> list[float]:
    members = [t for g in groups for t in g.trajectories]
    keep = [t.loss_mask & (i not in untrained) for i, t in enumerate(members)]
    return sample_weights(groups, keep, AlgorithmConfig(**keys)).tolist()


def test_without_a_key_all_count_the_same() -> None:
    assert weigh([answers(0, 1), answers(5)]) == [1, 1, 1]
    assert weigh([answers(0, 1), answers(5)], untrained=(1,)) == [1, 0, 1]


def test_hard_tasks_count_more() -> None:
    # mean rewards 1/2, 1 and 0: 1.25, 1.25, 0.5, 2; together 5 over 4
    got = weigh([answers(0, 1), answers(1), answers(0)], difficulty_loss_weight=True)
    np.testing.assert_allclose(got, [1, 1, 0.4, 1.6])


@pytest.mark.parametrize(("reward", "weight"), [(7.0, 0.5), (-3.0, 2.0)])
def test_difficulty_is_between_nought_and_one(reward: float, weight: float) -> None:
    got = weigh([answers(reward), answers(0.5)], difficulty_loss_weight=True)
    assert got[0] / got[1] == pytest.approx(weight / 1.25)


def test_long_responses_count_less() -> None:
    groups = [group(answer(0, 2), answer(0, 4)), group(answer(0, 6))]
    np.testing.assert_allclose(weigh(groups, length_loss_weight=True), [1.5, 1, 0.5])
    assert weigh([group(answer(0, 3), answer(1, 3))], length_loss_weight=True) == [1, 1]


def test_a_masked_member_has_no_say_in_lengths_but_in_difficulty() -> None:
    groups = [group(answer(0, 2), answer(0, 4), answer(0, 100))]
    np.testing.assert_allclose(weigh(groups, untrained=(2,), length_loss_weight=True), [1.5, 0.5, 0])
    got = weigh([answers(0, 1), answers(0)], untrained=(1,), difficulty_loss_weight=True)
    np.testing.assert_allclose(got, [1.25 / 1.625, 0, 2 / 1.625])


def test_both_multiply() -> None:
    groups = [group(answer(0, 2)), group(answer(1, 4))]
    # 1.5·2 = 3 and 0.5·0.5 = 1/4
    got = weigh(groups, difficulty_loss_weight=True, length_loss_weight=True)
    np.testing.assert_allclose(got, [3 / 1.625, 0.25 / 1.625])


def test_nothing_trained_weighs_nothing() -> None:
    keys = {"difficulty_loss_weight": True, "length_loss_weight": True}
    assert weigh([], **keys) == []
    assert weigh([answers(0, 1)], untrained=(0, 1), **keys) == [0, 0]
    assert weigh([group(), answers(0)], **keys) == [1]
