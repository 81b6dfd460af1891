"""Each taskset has its share of every prefix, within one task."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.ledger.shares import Share, current_round, next_taskset

WEIGHTS = st.lists(st.one_of(st.integers(1, 100).map(float), st.floats(0.001, 1000.0)), min_size=1, max_size=12)


def issue(shares: Mapping[str, Share]) -> dict[str, Share]:
    name = next_taskset(shares)
    had = shares[name]
    return {**shares, name: Share(had.weight, had.issued + 1, had.start)}


@given(WEIGHTS, st.integers(1, 150))
@settings(deadline=None)
def test_every_prefix_has_the_shares_within_one_task(weights: list[float], count: int) -> None:
    shares = {f"{place:02d}": Share(weight, 0) for place, weight in enumerate(weights)}
    for n in range(1, count + 1):
        shares = issue(shares)
        for share in shares.values():
            assert abs(share.issued - n * share.weight / sum(weights)) < 1 + 1e-6


def test_one_large_among_many_small_waits_for_none() -> None:
    """By the lowest ``issued / weight`` all fifty would come before its second task."""
    shares = {"large": Share(0.5, 0)} | {f"small{n}": Share(0.01, 0) for n in range(50)}
    for n in range(1, 101):
        shares = issue(shares)
        assert abs(shares["large"].issued - n / 2) < 1
    assert all(share.issued == 1 for name, share in shares.items() if name != "large")


@given(WEIGHTS, st.floats(0.1, 10.0), st.integers(0, 60))
@settings(deadline=None)
def test_one_that_joins_later_gets_its_share_from_then_on(weights: list[float], weight: float, before: int) -> None:
    shares = {f"{place:02d}": Share(value, 0) for place, value in enumerate(weights)}
    for _ in range(before):
        shares = issue(shares)
    shares |= {"late": Share(weight, 0, current_round(shares))}
    for n in range(1, 101):
        shares = issue(shares)
        assert abs(shares["late"].issued - n * weight / (sum(weights) + weight)) < 2


def test_ties_go_by_name() -> None:
    shares = {name: Share(1.0, 0) for name in ("b", "a")}
    assert [next_taskset(shares), next_taskset(issue(shares))] == ["a", "b"]
    assert current_round({}) == 0.0


@pytest.mark.parametrize("served", [10**6, 10**9])
def test_the_shares_hold_after_long_runs(served: int) -> None:
    shares = {"a": Share(0.7, served * 7), "b": Share(0.3, served * 3)}
    for n in range(1, 101):
        shares = issue(shares)
        assert abs(shares["a"].issued - served * 7 - 0.7 * n) < 1 + 1e-3
