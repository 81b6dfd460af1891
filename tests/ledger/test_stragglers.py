"""Promises P1 and P2, directed: S is reached, a straggler is overtaken while that is safe and then waited for."""

from __future__ import annotations

import pytest

from rljax.ledger import claims, processes
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.claims import TasksetSize
from rljax.ledger.leases import NoBatchYet
from tests.ledger.builders import LedgerBench, make_spec


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.5, 7.0])
def test_a_straggler_is_waited_for_at_exactly_the_bound(place: Backend, alpha: float, k: int, extra: int) -> None:
    """The first group is slow, all others are quick. It is overtaken until step S, which waits for it and trains it."""
    spec = make_spec(alpha, k, b=2, extra=extra)
    bench = LedgerBench(place, spec)
    straggler, *rest = bench.claim()
    for _ in range(100):
        for claim in [*rest, *bench.claim()]:
            bench.store(claim)
        rest = []
        found = bench.lease()
        if isinstance(found, NoBatchYet):
            # Nothing more can come: the run stands still for the straggler alone.
            assert not bench.claim()
            break
        bench.trained()
    # Without credit beyond one batch nothing can overtake; with it, the wait is for the deadline.
    assert bench.steps == (0 if alpha == 0 else spec.staleness_bound)
    if alpha:
        assert isinstance(found, NoBatchYet)
        assert f"group {straggler.group_id} (due at step {straggler.deadline})" in found.reason
    bench.store(straggler)
    assert straggler.task.index in bench.indices()
    bench.trained()
    report = audit(bench.db)
    assert report["balanced"], report["problems"]
    assert report["max_staleness"] == bench.steps - 1


@pytest.mark.parametrize(
    ("alpha", "k", "bound"), [(0, 1, 0), (0, 3, 2), (0.5, 1, 1), (1, 1, 1), (1, 4, 4), (2.5, 2, 4)]
)
def test_the_default_bound_is_reached_without_stragglers(place: Backend, alpha: float, k: int, bound: int) -> None:
    """An explorer that is always as far ahead as it may be makes tokens that are trained S steps later.

    By hand for α=1, k=4, b=2: four groups are claimed at version 0, and two more after each of the steps 0 to 2, which
    publish nothing: ten of version 0 in all, the last two of which are trained by step 4.
    """
    bench = LedgerBench(place, make_spec(alpha, k, b=2))
    for _ in range(4 * k + 4):
        for claim in bench.claim():
            bench.store(claim)
        bench.indices()
        bench.trained()
    report = audit(bench.db)
    assert report["max_staleness"] == report["staleness_bound"] == bound
    assert report["balanced"], report["problems"]


def test_synchronous_training_is_on_policy(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=3))
    for _ in range(4):
        claimed = bench.claim()
        assert len(claimed) == 3
        for claim in claimed:
            bench.store(claim)
        bench.indices()
        assert not bench.claim(), "before the step is trained and announced"
        bench.trained(announce=False)
        assert not bench.claim()
        bench.publish(bench.steps)
    assert audit(bench.db)["staleness_histogram"] == {"0": 12}


def test_at_integer_alpha_and_the_default_bound_each_step_waits_for_its_own_class(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2))
    first = bench.claim()
    assert [c.deadline for c in first] == [1, 1, 1, 1]
    for claim in first[:3]:
        bench.store(claim)
    # Three of version 0 are ready and one is not: it fits into step 1, so step 0 may overtake it.
    assert bench.indices() == [0, 1]
    bench.trained()
    second = bench.claim()
    assert [(c.version, c.deadline) for c in second] == [(1, 2), (1, 2)]
    for claim in second:
        bench.store(claim)
    # Now it is due: ready are one of its class and two of the next, but step 1 waits for it.
    late = bench.lease()
    assert isinstance(late, NoBatchYet)
    assert late.reason == "stragglers that would come too late after step 1: group 4 (due at step 1)"
    bench.store(first[3])
    assert bench.indices() == [2, 3]


def test_with_one_more_step_of_staleness_stragglers_overlap(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2, extra=1))
    first = bench.claim()
    for claim in first[:3]:
        bench.store(claim)
    assert bench.indices() == [0, 1]
    bench.trained()
    second = bench.claim()
    for claim in second[:1]:
        bench.store(claim)
    # A straggler of each of two classes, and step 1 still goes on.
    assert bench.indices() == [2, 4]
    bench.trained()
    third = bench.claim()
    for claim in third:
        bench.store(claim)
    assert isinstance(bench.lease(), NoBatchYet), "the first straggler is due at step 2"
    bench.store(first[3])
    assert bench.indices() == [3, 6], "most urgent first; the straggler of the second class, due at 3, is overtaken"
    bench.trained()
    assert audit(bench.db)["max_staleness"] == 2


def test_the_rest_is_kept_trainable_not_only_the_next_batch(place: Backend) -> None:
    """b=1, α=3: two claimed at version 0 and still slow may not both be pushed beyond what is left of their steps."""
    bench = LedgerBench(place, make_spec(alpha=3, b=1))
    first = bench.claim()
    assert [c.deadline for c in first] == [3, 3, 3, 3]
    bench.store(first[2])
    assert bench.indices() == [2]
    bench.trained()
    bench.store(first[3])
    assert bench.indices() == [3]
    bench.trained()
    later = bench.claim()
    assert [c.deadline for c in later] == [5, 5], "version 2, claimed only now, S=3"
    for claim in later:
        bench.store(claim)
    # Steps 2 and 3 are what is left for the two of version 0: step 2 must not be given to a quick one.
    found = bench.lease()
    assert isinstance(found, NoBatchYet)
    assert "group 1 (due at step 3), group 2 (due at step 3)" in found.reason
    bench.store(first[1])
    assert bench.indices() == [1]


def test_a_filtered_group_is_replaced(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2))
    first = bench.claim()
    claims.settle(bench.db, first[0], "filtered", "group_variance: all rewards are equal")
    bench.store(first[1])
    assert isinstance(bench.lease(), NoBatchYet)
    (replacement,) = bench.claim()
    assert replacement.task.index == 2
    bench.store(replacement)
    assert bench.indices() == [1, 2]


def test_nothing_is_claimed_beyond_the_last_step(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=7, b=2, max_steps=3))
    assert len(bench.claim()) == 6
    assert not bench.claim()


def test_what_is_left_at_the_end_of_data_is_dropped(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=2, b=2, total_epochs=1), size=5)
    claimed = bench.claim()
    assert len(claimed) == 5
    for claim in claimed[:4]:
        bench.store(claim)
    for _ in range(2):
        bench.indices()
        bench.trained()
    found = bench.lease()
    assert isinstance(found, NoBatchYet)
    assert not found.over, "one is still open"
    bench.store(claimed[4])
    found = bench.lease()
    assert isinstance(found, NoBatchYet)
    assert found.over
    report = audit(bench.db)
    assert (report["trained"], report["dropped"], report["open"]) == (4, {"end_of_data": 1}, 0)
    assert report["balanced"]


def test_data_that_nobody_serves_any_more_is_named(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2, total_epochs=1), size=3)
    claims.register_tasksets(bench.db, [TasksetSize("a", 3)], "e")
    guest = processes.register(bench.db, "f", "explorer")
    claims.register_tasksets(bench.db, [TasksetSize("a", 3), TasksetSize("own", 50)], "f")
    assert len(claims.claim(bench.db, "f", ["own"], 1).claims) == 1
    processes.leave(bench.db, "f", guest)

    (*two, third) = bench.claim()
    for claim in two:
        bench.store(claim)
    bench.indices()
    bench.trained()
    found = bench.lease()
    assert isinstance(found, NoBatchYet)
    assert (found.kind, found.reason) == ("generation", "groups: 0 of 2 ready"), "one of a is still under way"
    bench.store(third)
    nobody = "no explorer serves what is left: 50 of 50 tasks of taskset own; start one that does"
    found = bench.lease()
    assert isinstance(found, NoBatchYet)
    assert (found.kind, found.over) == ("explorer", False)
    assert found.reason == f"groups: 1 of 2 ready; {nobody}"
    assert claims.claim(bench.db, "e", ["a"], 10).reason == nobody

    processes.register(bench.db, "f", "explorer")
    found = bench.lease()
    assert isinstance(found, NoBatchYet)
    assert found.reason == "groups: 1 of 2 ready", "it serves what it did until it says otherwise"
