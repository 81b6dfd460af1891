"""Claims: who gets which task, what stops them, and that no number is used twice."""

from __future__ import annotations

from collections import Counter

import pytest

from rljax.ledger import claims, processes, validations
from rljax.ledger.backend import Backend
from rljax.ledger.claims import TasksetSize
from rljax.ledger.database import StaleWriterError
from rljax.ledger.transaction import Transaction
from tests.ledger.builders import LedgerBench, make_spec


def test_tasksets_are_mixed_by_weight_and_epochs_follow_each_other(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=7, b=3), size=3)
    claims.register_tasksets(bench.db, [TasksetSize("b", 100, weight=3.0)])
    granted = claims.claim(bench.db, "e", ["a", "b"], 16).claims
    assert Counter(c.task.taskset for c in granted) == {"a": 4, "b": 12}
    mine = [(c.task.epoch, c.task.index) for c in granted if c.task.taskset == "a"]
    assert mine == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_explorers_share_a_taskset_and_may_bring_their_own(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=3))
    processes.register(bench.db, "f", "explorer")
    claims.register_tasksets(bench.db, [TasksetSize("own", 10)])
    one = claims.claim(bench.db, "e", ["a"], 2).claims
    two = claims.claim(bench.db, "f", ["a"], 2).claims
    three = claims.claim(bench.db, "f", ["own"], 2).claims
    assert [str(c.task) for c in one + two + three] == ["a/0/0", "a/0/1", "a/0/2", "a/0/3", "own/0/0", "own/0/1"]
    assert len({c.number for c in one + two + three}) == 6


def test_a_taskset_that_joins_later_gets_its_share_and_no_more(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=99, b=2))
    assert len(bench.claim(100)) == 100
    claims.register_tasksets(bench.db, [TasksetSize("late", 1000, weight=3.0)])
    granted = claims.claim(bench.db, "e", ["a", "late"], 40).claims
    assert Counter(c.task.taskset for c in granted) == {"a": 10, "late": 30}


def test_a_weight_may_change_between_starts(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=99, b=2))
    claims.register_tasksets(bench.db, [TasksetSize("b", 1000)])
    claims.claim(bench.db, "e", ["a", "b"], 100)
    claims.register_tasksets(bench.db, [TasksetSize("b", 1000, weight=4.0)])
    granted = claims.claim(bench.db, "e", ["a", "b"], 50).claims
    assert Counter(c.task.taskset for c in granted) == {"a": 10, "b": 40}


def test_a_taskset_that_changed_its_size_is_refused(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(), size=10)
    claims.register_tasksets(bench.db, [TasksetSize("a", 10)])
    with pytest.raises(StaleWriterError, match="taskset a: 11 tasks, but this run began with 10"):
        claims.register_tasksets(bench.db, [TasksetSize("a", 11)])


def test_explorers_share_a_name_only_where_they_mean_the_same_tasks(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    claims.register_tasksets(bench.db, [TasksetSize("own", 10, 1.0, "mine")])
    claims.register_tasksets(bench.db, [TasksetSize("own", 10, 2.0, "mine")])
    with pytest.raises(StaleWriterError, match=r"taskset own: other problems, .* give the set another name"):
        claims.register_tasksets(bench.db, [TasksetSize("own", 10, 1.0, "yours")])


def test_a_claim_of_nothing_still_says_what_there_is_to_know(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2))
    assert "as much to do as they can run" in claims.claim(bench.db, "e", ["a"], 0).reason
    assert len(bench.claim()) == 2
    assert "credit: 2 of 2" in claims.claim(bench.db, "e", ["a"], 0).reason


def test_why_nothing_is_granted_is_said(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2, max_steps=1), learner=False)
    reason = lambda: claims.claim(bench.db, "e", ["a"], 10).reason  # noqa: E731
    assert reason() == "the first weights"
    bench.restart(0)
    claimed = bench.claim()
    assert reason() == "the end of the run: every group up to max_steps is claimed"
    for claim in claimed:
        bench.store(claim)
    bench.indices()
    bench.trained()
    assert reason() == "the end of the run: every group up to max_steps is claimed"


def test_credit_names_the_step_that_must_be_trained(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0.5, b=2))
    assert len(bench.claim()) == 3
    found = claims.claim(bench.db, "e", ["a"], 10)
    assert found.reason == "credit: 3 of 3 groups are outstanding; the learner must train step 1"


def test_staleness_stops_claims_while_a_publication_is_late(place: Backend) -> None:
    """α=1, k=2, b=1, S=2: three steps are trained on version 0, nothing is announced: what is claimed would be late."""
    bench = LedgerBench(place, make_spec(alpha=1, k=2, b=1))
    for _ in range(3):
        for claim in bench.claim():
            bench.store(claim)
        bench.indices()
        bench.trained(announce=False)
    found = claims.claim(bench.db, "e", ["a"], 10)
    assert found.claims == ()
    assert found.reason == "staleness: as many groups of version 0 are open as can be trained by step 2"
    bench.publish(2)
    assert [c.deadline for c in bench.claim()] == [4, 4]


def test_what_is_trained_and_not_announced_is_not_consumed(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2, extra=3))
    for claim in bench.claim():
        bench.store(claim)
    bench.indices()
    bench.trained(announce=False)
    found = claims.claim(bench.db, "e", ["a"], 10)
    assert found.reason == "credit: 4 of 4 groups are outstanding; the learner must train step 2"
    bench.publish(1)
    assert len(bench.claim()) == 2


def test_a_claim_must_fit_behind_the_step_that_is_leased(place: Backend) -> None:
    """α=2, k=2, b=1, S=3: version 2 is late, step 3 is leased, and what is claimed at version 0 is due at step 3."""
    bench = LedgerBench(place, make_spec(alpha=2, k=2, b=1))
    for step in range(4):
        for claim in bench.claim():
            bench.store(claim)
        bench.indices()
        if step < 3:
            bench.trained(announce=False)
    found = claims.claim(bench.db, "e", ["a"], 10)  # one is leased and one unannounced, of a credit of three
    assert found.reason == "staleness: as many groups of version 0 are open as can be trained by step 3"


def test_a_filled_interval_by_hand(place: Backend) -> None:
    """α=0, k=3, b=2: six groups at version 0, due at step 2, none until version 3, and again six."""
    bench = LedgerBench(place, make_spec(alpha=0, k=3, b=2, fill_interval=True))
    made = bench.claim()
    assert [c.deadline for c in made] == [2] * 6
    for claim in made:
        bench.store(claim)
    outstanding = "credit: 6 of 6 groups are outstanding; the learner must"
    for step in range(3):
        assert claims.claim(bench.db, "e", ["a"], 10).reason == f"{outstanding} train step {step + 1}"
        bench.indices()
        bench.trained(announce=False)
    assert claims.claim(bench.db, "e", ["a"], 10).reason == f"{outstanding} announce a newer version"
    bench.publish(3)
    assert [c.deadline for c in bench.claim()] == [5] * 6


def test_alpha_counts_what_lies_beyond_a_filled_interval(place: Backend) -> None:
    """α=0.5, k=2, b=2: five groups at version 0, due by step 2; version 2 lets in four more, due by step 4."""
    bench = LedgerBench(place, make_spec(alpha=0.5, k=2, b=2, fill_interval=True))
    made = bench.claim()
    assert [c.deadline for c in made] == [2] * 5
    for claim in made:
        bench.store(claim)
    for step in range(2):
        bench.indices()
        bench.trained(announce=step == 1)
    assert [c.deadline for c in bench.claim()] == [4] * 4


def test_only_a_registered_living_explorer_claims(place: Backend) -> None:
    """Nobody would reopen the claims of one that was declared dead, if it then died."""
    bench = LedgerBench(place, make_spec())
    assert "not registered" in claims.claim(bench.db, "stranger", ["a"], 1).reason
    processes.leave(bench.db, "e", bench.token)
    bench.publish(1, validate=True)
    assert bench.claim() == []
    assert validations.claim_validation(bench.db, "e") is None
    bench.token = processes.register(bench.db, "e", "explorer")
    assert validations.claim_validation(bench.db, "e") is not None


def test_a_handed_back_claim_is_no_longer_its_owners(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2))
    first, second = bench.claim()
    assert claims.hand_back(bench.db, "e") == 2
    with pytest.raises(StaleWriterError, match=r"group 1 \(a/0/0\): claim 0 has expired"):
        bench.store(first)
    again = bench.claim()
    assert [(c.group_id, c.number) for c in again] == [(1, 2), (2, 3)]
    with pytest.raises(StaleWriterError, match="claim 1 has expired"):
        claims.settle(bench.db, second, "dropped", "late")
    bench.store(again[0])
    with pytest.raises(StaleWriterError, match="expired"):
        bench.store(again[0])
    with pytest.raises(ValueError, match="not 'trained'"):
        claims.settle(bench.db, again[1], "trained", "no")


def test_whoever_waits_keeps_nobody_from_writing(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    bench.claim()

    def write(_: Transaction) -> None:
        assert claims.claim(bench.db, "e", ["a"], 1).reason.startswith("credit: 1 of 1")
        assert validations.claim_validation(bench.db, "e") is None
        assert validations.running(bench.db) is None

    bench.db.write(write)  # if one of them wanted to write, it would wait for this transaction to end
