"""The audit is believed only because it finds what is wrong: each test spoils a balanced ledger by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.ledger import claims, leases
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.leases import LeasedBatch
from tests.ledger.builders import LedgerBench, make_spec, sql


@pytest.fixture
def bench(place: Backend) -> LedgerBench:
    """Two steps of two groups, α=1: step 0 on version 0, step 1 on tokens of versions 0 and 1. Two more are ready, one
    of the last two is filtered and one dropped.
    """
    bench = LedgerBench(place, make_spec(alpha=1, b=2))
    first = bench.claim()
    bench.store(first[0], 0, 0, 0)
    bench.store(first[1], 0)
    bench.indices()
    bench.trained()
    bench.store(first[2], 0, 0, 1)
    bench.store(first[3], 1)
    bench.indices()
    bench.trained()
    second = bench.claim()
    bench.store(second[0])
    claims.settle(bench.db, second[1], "filtered", "group_variance: dull")
    claims.settle(bench.db, second[2], "dropped", "timeout")
    return bench


def spoil(bench: LedgerBench, statement: str, **values: Any) -> list[str]:
    sql(bench.db, statement, **values)
    report = audit(bench.db)
    assert report["balanced"] is False
    return list(report["problems"])


def test_the_numbers_of_a_balanced_run(bench: LedgerBench) -> None:
    report = audit(bench.db)
    assert report["balanced"] is True
    assert report["problems"] == []
    wanted = {
        "claimed": 8,
        "trained": 4,
        "open": 2,
        "open_by_state": {"claimed": 1, "ready": 1},
        "dropped": {"timeout": 1},
        "filtered": {"group_variance: dull": 1},
        "trained_twice": 0,
        "steps": 2,
        "max_staleness": 1,
        "staleness_bound": 1,
        "staleness_histogram": {"0": 6, "1": 2},
        "versions": {"announced": 3, "withdrawn": 0, "newest": 2},
        "retired": 0,
        "gaps": {},
    }
    assert {key: report[key] for key in wanted} == wanted


def test_an_empty_ledger_balances(place: Backend) -> None:
    report = audit(LedgerBench(place, make_spec(), learner=False).db)
    assert (report["balanced"], report["claimed"], report["versions"]["newest"]) == (True, 0, -1)


def test_a_group_trained_twice_is_found(bench: LedgerBench) -> None:
    problems = spoil(bench, "UPDATE batches SET group_id=1 WHERE step=1 AND position=0")
    assert "1 groups were trained twice" in problems
    assert "1 groups are marked trained and in no batch, or the reverse" in problems
    assert audit(bench.db)["trained_twice"] == 1


def test_a_row_that_vanished_is_found(bench: LedgerBench) -> None:
    assert spoil(bench, "DELETE FROM groups WHERE id=6") == ["tasks were issued and have no row: {'a': [5]}"]


def test_a_state_that_nobody_knows_is_found(bench: LedgerBench) -> None:
    assert spoil(bench, "UPDATE groups SET state='lost' WHERE id=6") == [
        "8 groups were claimed, but 7 are accounted for"
    ]


def test_a_missing_batch_is_found(bench: LedgerBench) -> None:
    problems = spoil(bench, "DELETE FROM batches WHERE step=0")
    assert "the surviving batches are not those of steps 0 to 1" in problems


def test_a_short_batch_is_found(bench: LedgerBench) -> None:
    assert "steps [1] did not train 2 groups" in spoil(bench, "DELETE FROM batches WHERE step=1 AND position=1")


def test_a_token_beyond_the_bound_is_found(bench: LedgerBench) -> None:
    problems = spoil(bench, "UPDATE batches SET step=5 WHERE step=1")
    assert "a token was 5 steps stale, the bound is 1" in problems


def test_a_token_from_the_future_is_found(bench: LedgerBench) -> None:
    counts = '{"3": 1}'
    problems = spoil(bench, "UPDATE batches SET version_counts=:counts WHERE step=0 AND position=0", counts=counts)
    assert problems == ["a token was trained by a step older than its weights"]


def test_demonstrations_are_counted_once_for_each_step_that_stands(place: Backend) -> None:
    """Three steps, of which the last two are trained again: 0 to 2, each with positions of its own."""
    bench = LedgerBench(place, make_spec(alpha=0, b=1, demonstrations=3))
    for step in (0, 1, 2, 1, 2):
        if step < bench.steps:
            bench.restart(step)
        for claim in bench.claim():
            bench.store(claim)
        leased = bench.lease()
        assert isinstance(leased, LeasedBatch)
        assert leased.demonstrations == range(3 * step, 3 * step + 3)
        bench.trained()
    assert [batch.demonstrations for batch in leases.recorded_batches(bench.db, 1, 3)] == [range(3, 6), range(6, 9)]
    report = audit(bench.db)
    assert (report["demonstrations"], report["balanced"]) == (9, True)


def test_a_step_without_its_demonstrations_is_found(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1, demonstrations=3))
    bench.store(bench.claim()[0])
    bench.lease()
    bench.trained(demonstrations=2)
    assert audit(bench.db)["problems"] == ["steps [0] did not train 3 demonstrations"]


def test_steps_of_demonstrations_alone_are_counted_without_groups(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=0, demonstrations=3))
    for step in (0, 1, 2, 1, 2):
        if step < bench.steps:
            bench.restart(step)
        refused = claims.claim(bench.db, "e", ["a"], 10)
        assert (refused.claims, refused.over) == ((), False)
        assert refused.reason == f"a version to validate: demonstrations alone are trained, {step} steps so far"
        leased = bench.lease()
        assert isinstance(leased, LeasedBatch)
        assert (leased.groups, leased.demonstrations) == ((), range(3 * step, 3 * step + 3))
        again = bench.lease()
        assert again == leased, "a lease that was not trained is leased again"
        bench.trained()
    assert [batch.demonstrations for batch in leases.recorded_batches(bench.db, 1, 3)] == [range(3, 6), range(6, 9)]
    report = audit(bench.db)
    assert (report["demonstrations"], report["steps"], report["claimed"], report["balanced"]) == (9, 3, 0, True)
    problems = spoil(bench, "DELETE FROM steps WHERE step=1 AND lineage=2")
    assert problems == ["the surviving batches are not those of steps 0 to 2"]
