"""Groups that no step trains: each is counted in one step, whatever restarts, and a streak of them is noticed."""

from __future__ import annotations

from rljax.ledger import claims
from rljax.ledger.backend import Backend
from rljax.ledger.filtered_streak import FilteredStreak, filtered_by_taskset, filtered_during
from rljax.ledger.leases import NoBatchYet
from tests.ledger.builders import LedgerBench, make_spec

EASY, HARD = "mean_band: mean reward too high", "mean_band: mean reward too low"


def step_with_filtered(bench: LedgerBench, *reasons: str) -> None:
    """Trains a step of one group, before which these were filtered."""
    for reason in reasons:
        claims.settle(bench.db, bench.claim(1)[0], "filtered", reason)
    bench.store(bench.claim(1)[0])
    bench.indices()
    bench.trained()


def test_each_filtered_group_is_counted_in_one_step(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    step_with_filtered(bench, EASY, HARD, HARD)
    step_with_filtered(bench)
    step_with_filtered(bench, EASY)
    claims.settle(bench.db, bench.claim(1)[0], "filtered", HARD)
    found = [filtered_during(bench.db, step) for step in range(4)]
    assert found == [{EASY: 1, HARD: 2}, {}, {EASY: 1}, {HARD: 1}]
    by_taskset = [filtered_by_taskset(bench.db, step) for step in range(4)]
    assert [list(counts.values()) for counts in by_taskset] == [[3], [], [1], [1]]


def test_steps_between_two_versions_count_their_own(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1, k=2))
    for reasons in ((EASY,), (HARD, HARD), (EASY, HARD)):
        step_with_filtered(bench, *reasons)
    found = [filtered_during(bench.db, step) for step in range(3)]
    assert found == [{EASY: 1}, {HARD: 2}, {EASY: 1, HARD: 1}]


def test_a_step_that_is_trained_again_counts_its_own_and_the_sum_is_that_of_the_ledger(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    step_with_filtered(bench, EASY)
    step_with_filtered(bench, EASY, EASY)
    step_with_filtered(bench, HARD)
    bench.restart(1)  # the rows of the two later steps are written again
    bench.indices()
    bench.trained()
    step_with_filtered(bench, EASY)
    found = [filtered_during(bench.db, step) for step in range(3)]
    assert found == [{EASY: 1}, {EASY: 2}, {EASY: 1, HARD: 1}]


def test_dropped_groups_are_not_filtered(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    claims.settle(bench.db, bench.claim(1)[0], "dropped", "timeout")
    assert filtered_during(bench.db, 0) == {}


def test_a_learner_that_waits_hears_how_many_were_filtered_since_one_was_kept(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2))

    def streak(*reasons: str) -> FilteredStreak | None:
        for reason in reasons:
            claims.settle(bench.db, bench.claim(1)[0], "filtered", reason)
        waiting = bench.lease()
        assert isinstance(waiting, NoBatchYet)
        return waiting.filtered

    assert streak() is None
    assert streak(HARD, EASY, HARD) == FilteredStreak(3, HARD)
    bench.store(bench.claim(1)[0])
    assert streak() is None, "one was kept"
    assert streak(EASY) == FilteredStreak(1, EASY)
    bench.store(bench.claim(1)[0])
    bench.indices()
    bench.trained()
    assert streak() is None, "of another step"
