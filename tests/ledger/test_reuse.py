"""Groups that are trained again: which, how often, until when, and what a restart makes of it. All by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.ledger import leases
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.leases import LeasedBatch
from tests.ledger.builders import LedgerBench, make_spec, sql


def make_bench(place: Backend, **changes: Any) -> LedgerBench:
    """Two new groups a step, on policy, with a bound of two steps: a group may be trained in two steps of three."""
    keys = {"alpha": 0, "b": 2, "extra": 2, "max_uses": 2, "reused_groups": 1, **changes}
    return LedgerBench(place, make_spec(**keys))


def step(bench: LedgerBench) -> tuple[list[int], list[int]]:
    """Claims and stores what may be, and trains; see `train`."""
    for claim in bench.claim():
        bench.store(claim)
    return train(bench)


def train(bench: LedgerBench) -> tuple[list[int], list[int]]:
    """Trains one step; task indices of what is new, and of what is trained again."""
    leased = bench.lease()
    assert isinstance(leased, LeasedBatch)
    asked_again = bench.lease()
    assert isinstance(asked_again, LeasedBatch)
    assert (asked_again.group_ids, len(asked_again.reused)) == (leased.group_ids, len(leased.reused))
    bench.trained()
    return [g.task.index for g in leased.groups], [g.task.index for g in leased.reused]


def test_the_least_used_then_the_newest_then_the_first_claimed(place: Backend) -> None:
    bench = make_bench(place)
    assert step(bench) == ([0, 1], []), "nothing is old yet"
    assert step(bench) == ([2, 3], [0]), "0 and 1 are equals"
    assert step(bench) == ([4, 5], [2]), "0 has had its two uses; 2 and 3 are newer than 1"
    assert step(bench) == ([6, 7], [4]), "1 has been due at step 2"
    report = audit(bench.db)
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"], report["max_uses"]) == (8, 0, 2)
    assert report["uses"] == {"1": 5, "2": 3}
    assert report["staleness_histogram"] == {"0": 8, "1": 3}


@pytest.mark.parametrize(
    ("reused", "again"),
    [(1, [[], [0], [1], [2], [3]]), (2, [[], [0], [1, 0], [2, 1], [3, 2]]), (3, [[], [0], [1, 0], [2, 1], [3, 2]])],
)
def test_a_group_used_once_comes_before_one_used_twice(place: Backend, reused: int, again: list[list[int]]) -> None:
    """One new group a step, three uses: in step 2, group 0 has had two and is the second choice."""
    bench = make_bench(place, b=1, extra=3, max_uses=3, reused_groups=reused)
    assert [step(bench)[1] for _ in range(5)] == again


def test_a_straggler_used_once_comes_before_a_newer_group_used_twice(place: Backend) -> None:
    """One new group a step, claimed one ahead; group 0 is stored late and trained third."""
    bench = make_bench(place, alpha=1, b=1, extra=3, max_uses=3)
    straggler, first = bench.claim()
    bench.store(first)
    assert train(bench) == ([1], [])
    (second,) = bench.claim()
    bench.store(second)
    assert train(bench) == ([2], [1])
    (third,) = bench.claim()
    bench.store(straggler)
    assert train(bench) == ([0], [2])
    bench.store(third)
    assert train(bench) == ([3], [0]), "group 2, of a later version, has had two uses"


def test_the_oldest_token_that_is_trained_again_is_within_the_bound(place: Backend) -> None:
    """Reuse takes whatever may be taken: a group of version 0 is trained at steps 0, 1 and 2, and no more."""
    bench = make_bench(place, max_uses=9, reused_groups=100)
    batches = [step(bench)[1] for _ in range(5)]
    assert batches == [[], [0, 1], [2, 3, 0, 1], [4, 5, 2, 3], [6, 7, 4, 5]]
    report = audit(bench.db)
    assert (report["balanced"], report["max_staleness"], report["staleness_bound"]) == (True, 2, 2)
    assert report["uses"] == {"1": 2, "2": 2, "3": 6}


def test_a_restart_undoes_uses_and_the_same_are_reused_again(place: Backend) -> None:
    bench = make_bench(place)
    before = [step(bench) for _ in range(4)]
    bench.restart(2)
    assert [step(bench) for _ in range(2)] == before[2:]
    report = audit(bench.db)
    assert report["balanced"], report["problems"]
    assert (report["uses"], report["steps"]) == ({"1": 5, "2": 3}, 4)
    assert [len(b.reused) for b in leases.recorded_batches(bench.db, 0, 4)] == [0, 1, 1, 1]


def test_what_may_be_reused_is_kept_when_older_batches_are_not(place: Backend) -> None:
    bench = make_bench(place)
    before = [step(bench) for _ in range(4)]
    leases.prune_payloads(bench.db, bench.lineage, 3)
    assert [r.group_id for r in sql(bench.db, "SELECT group_id FROM payloads ORDER BY group_id")] == [3, 4, 5, 6, 7, 8]
    (last,) = leases.recorded_batches(bench.db, 3, 4)
    assert ([g.task.index for g in last.groups], [g.task.index for g in last.reused]) == before[3]
    bench.restart(3)
    assert step(bench) == before[3]
    assert audit(bench.db)["balanced"]


def test_without_reuse_a_batch_is_not_kept_any_longer(place: Backend) -> None:
    bench = make_bench(place, max_uses=1, reused_groups=0)
    for _ in range(4):
        assert step(bench)[1] == []
    leases.prune_payloads(bench.db, bench.lineage, 3)
    assert len(sql(bench.db, "SELECT group_id FROM payloads")) == 2


def test_reuse_takes_no_credit(place: Backend) -> None:
    plain, reusing = make_spec(1, b=2, extra=1), make_spec(1, b=2, extra=1, max_uses=3, reused_groups=2)
    bench = LedgerBench(place, reusing)
    claimed = []
    for _ in range(3):
        claims = bench.claim()
        claimed.append(len(claims))
        for claim in claims:
            bench.store(claim)
        assert isinstance(bench.lease(), LeasedBatch)
        claimed[-1] += len(bench.claim())
        bench.trained()
    assert claimed == [4, 2, 2], "as many as the learner takes for the first time"
    assert plain.staleness_bound == reusing.staleness_bound == 2


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE batches SET group_id=2 WHERE step=1 AND position=2", None),
        ("UPDATE batches SET group_id=1 WHERE step=2 AND position=2", "1 groups were trained more than 2 times"),
        (
            "UPDATE batches SET group_id=7 WHERE step=1 AND position=2",
            "steps [1, 3] did not train 2 new groups and then",
        ),
        ("UPDATE batches SET group_id=5 WHERE step=2 AND position=2", "steps [2] did not train 2 new groups and then"),
        ("DELETE FROM batches WHERE step=2 AND position=0", "steps [2, 3] did not train 2 new groups and then"),
        ("DELETE FROM batches WHERE step=2 AND position>0", "steps [2] did not train 2 groups and up to 1 again"),
    ],
)
def test_the_audit_finds_what_reuse_may_not_do(place: Backend, statement: str, problem: str | None) -> None:
    bench = make_bench(place)
    for _ in range(4):
        step(bench)
    sql(bench.db, statement)
    problems = audit(bench.db)["problems"]
    assert not problems if problem is None else any(found.startswith(problem) for found in problems), problems
