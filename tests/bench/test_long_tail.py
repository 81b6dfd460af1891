"""Lengths of what the schedule trains: none is favoured but where members are cancelled, and then as computed."""

import statistics

import pytest

from bench.long_tail import Case, run

SLOTS = 10**6


@pytest.mark.parametrize("case", [Case("as it is", 1.0), Case("half more, the rest goes on", 0.5, 1)])
def test_what_is_trained_does_not_depend_on_its_length(case: Case) -> None:
    """All that began is trained, in whatever order (P2)."""
    found = run("lognormal", case, 3, 0, SLOTS)
    assert (found["trained"], found["lost"]) == (1.0, pytest.approx(0.0, abs=1e-9))
    assert found["long"] == pytest.approx(0.1, abs=0.02)


def test_redundancy_trains_the_shortest_of_a_group() -> None:
    """Of 9 lognormal lengths whose deviation is their mean, the 8 shortest have 0.779 of the mean (20,000 groups)."""
    each = [run("lognormal", Case("redundancy", redundancy=1), 2, seed, SLOTS) for seed in range(2)]
    assert statistics.fmean(one["trained"] for one in each) == pytest.approx(0.779, abs=0.08)
    assert all(one["lost"] > 0.1 for one in each)


def test_what_begins_again_is_short_in_the_end() -> None:
    found = run("lognormal", Case("half more, the rest begins again", 0.5, 1, again=True), 4, 0, SLOTS)
    assert found["trained"] < 0.95
