import math

import pytest

from rljax.algorithms.registry import chosen_filters, filters
from rljax.config.schema import AlgorithmConfig
from rljax.config.validate import ConfigError
from rljax.trajectory import Group
from tests.algorithms.builders import answer, answers, group


def reason(name: str, of: Group, **keys: float | None) -> str | None:
    return filters.bound(name, keys)(of)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0, 0], "equal rewards"),
        ([0.1] * 3, "equal rewards"),
        ([1], "equal rewards"),
        ([0, 1e-9], None),
        ([0, 1, 0], None),
    ],
)
def test_group_variance(rewards: list[float], expected: str | None) -> None:
    assert reason("group_variance", answers(*rewards)) == expected


@pytest.mark.parametrize(
    ("rewards", "low", "high", "expected"),
    [
        ([0, 0, 0, 1], 0.25, 0.75, None),  # a bound is inside
        ([0, 1, 1, 1], 0.25, 0.75, None),
        ([0, 0, 0, 0.9], 0.25, 0.75, "mean reward too low"),
        ([1.1, 1, 1, 0], 0.25, 0.75, "mean reward too high"),
        ([0, 0], None, 0.75, None),
        ([1, 1], 0.25, None, None),
        ([0, 0], 0.1, None, "mean reward too low"),
        ([math.nan], 0.1, 0.9, None),
    ],
)
def test_mean_band(rewards: list[float], low: float | None, high: float | None, expected: str | None) -> None:
    assert reason("mean_band", answers(*rewards), low=low, high=high) == expected


@pytest.mark.parametrize(
    ("rewards", "least", "expected"),
    [
        ([1, 1], 0.0, "rewards too equal"),
        ([0.1] * 3, 0.0, "rewards too equal"),
        ([5], 0.0, "rewards too equal"),
        ([0, 1e-3], 0.0, None),
        ([0, 2], 2**0.5 + 1e-9, "rewards too equal"),
        ([0, 2], 2**0.5 - 1e-9, None),  # the unbiased one; the biased one is 1
        ([0, 2], 1.1, None),
    ],
)
def test_min_std(rewards: list[float], least: float, expected: str | None) -> None:
    assert reason("min_std", answers(*rewards), bound=least) == expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["length", "sequence_length"], "all cut off"),
        (["length", "stop"], None),
        (["stop"], None),
        (["truncated", "max_turns"], None),
    ],
)
def test_overlong(reasons: list[str], expected: str | None) -> None:
    assert reason("overlong", group(*(answer(1.0, finish_reason=r) for r in reasons))) == expected


def test_the_chosen_ones_know_the_config() -> None:
    config = AlgorithmConfig(filters=("overlong", "mean_band"), filter={"mean_band": {"low": 0.5}})
    (first, overlong), (second, mean_band) = chosen_filters(config)
    assert (first, second) == ("overlong", "mean_band")
    assert overlong(answers(0.0)) is None
    assert mean_band(answers(0.0)) == "mean reward too low"


def test_a_filter_that_does_not_take_a_group_alone_is_refused() -> None:
    filters.register("test-of-old")(lambda group, config: None)
    with pytest.raises(ConfigError, match="filters='test-of-old': must take 1 argument, and its keys as keyword-only"):
        chosen_filters(AlgorithmConfig(filters=("test-of-old",)))
