"""Promises P3, P11 and P13: what a restart keeps, what it loses, and what can be replayed. Cases by hand."""

from __future__ import annotations

import dataclasses

import pytest

from rljax.ledger import claims, leases, processes, versions
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.database import Database, LedgerError, RunFailedError, StaleWriterError, is_finished
from rljax.ledger.fence import Fence
from rljax.ledger.leases import LeasedBatch, NoBatchYet
from tests.ledger.builders import LedgerBench, make_group, make_spec, sql, store


def fill(bench: LedgerBench) -> None:
    """Claims all that may be claimed and stores it, with tokens of the announced version."""
    for claim in bench.claim():
        bench.store(claim)


def advance(bench: LedgerBench, steps: int) -> list[list[int]]:
    batches = []
    for _ in range(steps):
        fill(bench)
        batches.append(bench.indices())
        bench.trained()
    return batches


def test_rows_trained_after_the_checkpoint_are_trained_again_in_the_same_order(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, k=2, b=2))
    before = advance(bench, 2)
    # Step 0 and step 1 trained tokens of version 0; version 2 is announced. Nothing of version 2 exists yet.
    bench.restart(0)
    assert claims.states(bench.db) == {"ready": 4}
    assert not bench.claim(), "four are outstanding, the credit is two"
    again = []
    for _ in range(2):
        again.append(bench.indices())
        bench.trained()
    assert again == before == [[0, 1], [2, 3]]
    report = audit(bench.db)
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"], report["steps"], report["retired"]) == (4, 0, 2, 0)


def test_rows_with_any_token_of_a_lost_version_are_retired(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=2, b=2))
    first = bench.claim()
    assert len(first) == 6
    bench.store(first[0], 0, 0)
    bench.store(first[1], 0)
    bench.indices()
    bench.trained()  # version 1
    bench.store(first[2], 0, 1, 0)  # one token is of version 1
    bench.store(first[3], 0, 0)
    bench.store(first[4])
    bench.restart(0)
    # 0, 1 were trained on tokens of version 0: ready again. 2 is retired. 3, 4 stay. 5 is still claimed and might hold
    # tokens of version 1: its claim is over.
    assert claims.states(bench.db) == {"ready": 4, "open": 2}
    with pytest.raises(StaleWriterError, match="expired"):
        bench.store(first[5], 0)
    assert [c.task.index for c in bench.claim()] == [2, 5], "reopened tasks come before new ones"
    report = audit(bench.db)
    assert report["retired"] == 1
    assert report["lineages"][-1]["retired"] == 1
    assert [leases.retired_by(bench.db, lineage) for lineage in (1, 2)] == [0, 1]
    assert report["versions"] == {"announced": 3, "withdrawn": 1, "newest": 0}
    assert report["balanced"], report["problems"]


def test_a_trained_row_of_a_lost_lineage_is_retired_too(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    advance(bench, 3)  # step t trained tokens of version t
    bench.restart(1)
    # Task 1 was trained by step 1 on tokens of version 1, which survives; task 2's version 2 does not.
    assert claims.states(bench.db) == {"trained": 1, "ready": 1, "open": 1}
    assert bench.indices() == [1]
    bench.trained()
    (again,) = bench.claim()
    assert (again.task.index, again.version) == (2, 2)
    bench.store(again)
    assert bench.indices() == [2]
    bench.trained()
    report = audit(bench.db)
    assert (report["trained"], report["trained_twice"], report["retired"]) == (3, 0, 1)
    assert report["balanced"], report["problems"]


def test_open_claims_survive_where_no_version_is_lost(place: Backend) -> None:
    """An explorer that came first: the learner's start takes nothing away, also before its first announcement."""
    bench = LedgerBench(place, make_spec(alpha=1, b=2), learner=False)
    bench.publish(0)  # by the explorer, lineage 0
    claimed = bench.claim()
    bench.store(claimed[0])
    bench.lineage = leases.begin_lineage(bench.db, 0)
    bench.store(claimed[1])  # between the start and the announcement
    assert not bench.claim()
    bench.publish(0)
    bench.store(claimed[2])
    bench.store(claimed[3])
    assert bench.indices() == [0, 1]
    bench.trained()
    assert bench.indices() == [2, 3]
    bench.trained()
    report = audit(bench.db)
    assert (report["trained"], report["trained_twice"], report["retired"]) == (4, 0, 0)
    assert report["balanced"], report["problems"]


def test_a_group_with_tokens_of_a_withdrawn_version_is_refused_and_its_task_reopened(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    advance(bench, 2)
    bench.restart(1)
    assert bench.indices() == [1]
    bench.trained(announce=False)  # version 2 of the new lineage does not exist for others yet
    bench.publish(2)
    bench.restart(2)
    (claim,) = bench.claim()
    with pytest.raises(StaleWriterError, match="tokens of version 3, which was withdrawn"):
        bench.store(claim, 2, 3)
    assert claims.states(bench.db)["open"] == 1
    assert [c.task.index for c in bench.claim()] == [2], "no claim is left that nobody works on"


def test_a_batch_leased_by_a_dead_learner_is_leased_again_the_same(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=3))
    fill(bench)
    first = bench.indices()
    bench.restart(0)
    assert bench.indices() == first
    assert bench.indices() == first, "and asking twice changes nothing"


def test_synchronous_batches_do_not_depend_on_deaths(place: Backend) -> None:
    """Promise P11: an explorer dies with part of a batch stored; the batch is that of an undisturbed run, in order."""
    bench = LedgerBench(place, make_spec(alpha=0, b=4))
    claimed = bench.claim()
    bench.store(claimed[3])
    bench.store(claimed[1])
    processes.leave(bench.db, "e", bench.token)
    bench.token = processes.register(bench.db, "e", "explorer")
    again = bench.claim()
    assert [c.task.index for c in again] == [0, 2]
    for claim in again:
        bench.store(claim)
    assert bench.indices() == [0, 1, 2, 3]


def test_a_checkpoint_ahead_of_the_ledger_is_refused(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    advance(bench, 1)
    with pytest.raises(LedgerError, match="checkpoint 2 is ahead of the ledger, which saw 1 batches"):
        leases.begin_lineage(bench.db, 2)


def test_stale_learners_are_refused_everywhere(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    zombie = bench.lineage
    fill(bench)
    bench.indices()
    bench.restart(0)
    for write in (
        lambda: leases.lease(bench.db, zombie),
        lambda: leases.mark_trained(bench.db, zombie, 0, True),
        lambda: leases.prune_payloads(bench.db, zombie, 0),
        lambda: leases.finish(bench.db, zombie),
        lambda: versions.announce(bench.db, zombie, 1, "x"),
        lambda: versions.take_deletable(bench.db, zombie),
        lambda: leases.fail_run(bench.db, zombie, "its files are gone"),
        Fence(bench.db, zombie).check,
    ):
        with pytest.raises(StaleWriterError, match="another trainer has taken over"):
            write()
    bench.indices()
    with pytest.raises(StaleWriterError, match="step 1 is not leased; the ledger is at step 0"):
        leases.mark_trained(bench.db, bench.lineage, 1, True)
    bench.trained()
    with pytest.raises(StaleWriterError, match="step 0 is not leased"):
        leases.mark_trained(bench.db, bench.lineage, 0, True)


def test_a_learner_that_was_replaced_while_it_started_does_not_begin(place: Backend) -> None:
    """It was stopped with its checkpoint read; its successor has trained since."""
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    stopped = processes.register(bench.db, "trainer", "trainer")
    bench.clock.now += 100
    processes.heartbeat(bench.db, "e", bench.token)  # which finds the other silent
    living = processes.register(bench.db, "trainer", "trainer")
    bench.lineage = leases.begin_lineage(bench.db, 0, living)
    with pytest.raises(StaleWriterError, match="has taken over"):
        leases.begin_lineage(bench.db, 0, stopped)
    Fence(bench.db, bench.lineage).check()


def test_recorded_batches_are_replayed_in_order_and_whole(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2))
    trained = []
    for _ in range(3):
        fill(bench)
        leased = bench.lease()
        assert isinstance(leased, LeasedBatch)
        trained.append(leased)
        bench.trained()
    for recorded, batch in zip(leases.recorded_batches(bench.db, 0, 3), trained, strict=True):
        assert (recorded.step, recorded.group_ids) == (batch.step, batch.group_ids)
        for again, group in zip(recorded.groups, batch.groups, strict=True):
            assert again.task == group.task
            assert (again.trajectories[0].versions == group.trajectories[0].versions).all()
    assert [batch.step for batch in leases.recorded_batches(bench.db, 1, 2)] == [1]


def test_replay_gives_the_surviving_batches_only(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    advance(bench, 2)
    bench.restart(1)
    leased = bench.lease()
    assert isinstance(leased, LeasedBatch)
    bench.trained()
    first, second = leases.recorded_batches(bench.db, 0, 2)
    assert (first.groups[0].task.index, second.group_ids) == (0, leased.group_ids)


def test_pruned_batches_can_neither_be_replayed_nor_restarted_from(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    advance(bench, 3)
    leases.prune_payloads(bench.db, bench.lineage, 2)
    leases.prune_payloads(bench.db, bench.lineage, 1)  # an older bound changes nothing
    assert len(sql(bench.db, "SELECT group_id FROM payloads")) == 1
    with pytest.raises(LedgerError, match="the batches before step 2 are no longer kept"):
        leases.recorded_batches(bench.db, 1, 3)
    with pytest.raises(LedgerError, match=r"checkpoint 1 is older than the batches kept \(from step 2 on\)"):
        leases.begin_lineage(bench.db, 1)
    assert len(leases.recorded_batches(bench.db, 2, 3)) == 1
    bench.restart(2)
    assert bench.indices() == [2]


def test_a_failed_run_stops_everybody_until_a_learner_starts_again(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2))
    processes.fail_run(bench.db, "trainer", "the disk is on fire")
    processes.fail_run(bench.db, "e", "and so it stopped")
    for act in (lambda: bench.lease(), lambda: bench.claim()):
        with pytest.raises(RunFailedError, match="the disk is on fire"):
            act()
    assert audit(bench.db)["failure"] == "the disk is on fire"
    bench.restart(0)
    fill(bench)
    assert bench.indices() == [0, 1]


def test_a_finished_run_goes_on_when_more_is_asked_for(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1, max_steps=1))
    bench.store(bench.claim()[0])
    bench.indices()
    bench.trained()
    leases.finish(bench.db, bench.lineage)
    assert is_finished(bench.db, 1)
    processes.leave(bench.db, "e", bench.token)
    longer = Database(bench.place, make_spec(alpha=0, b=1, max_steps=2), bench.clock)
    assert not is_finished(longer, 2)
    # An explorer that comes before the learner stays for it.
    processes.register(longer, "e", "explorer")
    found = claims.claim(longer, "e", ["a"], 10)
    reason = "the learner to go on: this run had finished at step 1 and max_steps is now 2"
    assert (found.claims, found.over, found.reason) == ((), False, reason)
    versions.announce(longer, leases.begin_lineage(longer, 1), 1, "weights/v1-2")
    assert len(claims.claim(longer, "e", ["a"], 10).claims) == 1


def test_a_run_whose_data_ended_goes_on_with_more_epochs_alone(place: Backend) -> None:
    spec = make_spec(alpha=0, b=1, max_steps=9, total_epochs=1)
    bench = LedgerBench(place, spec, size=1)
    bench.store(bench.claim()[0])
    bench.indices()
    bench.trained()
    leases.finish(bench.db, bench.lineage)
    processes.leave(bench.db, "e", bench.token)
    for changes, finished in (({}, True), ({"max_steps": 20}, True), ({"total_epochs": 2}, False)):
        again = dataclasses.replace(spec, **changes)
        db = Database(bench.place, again, bench.clock)
        assert is_finished(db, again.max_steps) == finished
        token = processes.register(db, "e", "explorer")
        found = claims.claim(db, "e", ["a"], 10)
        assert found.over == finished
        processes.leave(db, "e", token)
    assert found.reason == "the learner to go on: this run had finished at step 1 and total_epochs is now 2"


def test_a_finished_run_sends_explorers_home(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=2, max_steps=1))
    for claim in bench.claim():
        bench.store(claim)
    bench.indices()
    bench.trained()
    leases.finish(bench.db, bench.lineage)
    found = claims.claim(bench.db, "e", ["a"], 10)
    assert (found.claims, found.over, found.reason) == ((), True, "the run is finished")
    assert audit(bench.db)["finished"] is True
    bench.restart(0)
    assert audit(bench.db)["finished"] is False


def test_what_the_learner_waits_for_is_named(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2))
    first = bench.lease()
    assert isinstance(first, NoBatchYet)
    assert first.reason == "groups: 0 of 2 ready"
    processes.leave(bench.db, "e", bench.token)
    alone = bench.lease()
    assert isinstance(alone, NoBatchYet)
    assert alone.reason == "an explorer: 0 of 2 groups ready and none is here yet; with mode=train start one"


def test_a_learner_that_waits_hears_what_became_of_the_groups(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=2))
    for _ in range(3):
        for claim in bench.claim():
            claims.settle(bench.db, claim, "dropped", "RewardError")
    one, other = bench.claim()
    claims.settle(bench.db, one, "filtered", "equal rewards")
    waiting = bench.lease()
    assert isinstance(waiting, NoBatchYet)
    told = "groups: 0 of 2 ready; of those in time for step 0, 6 dropped: RewardError, 1 filtered: equal rewards"
    assert waiting.reason == told
    bench.store(other)
    fill(bench)
    bench.indices()
    bench.trained()
    later = bench.lease()
    assert isinstance(later, NoBatchYet)
    assert later.reason == "groups: 0 of 2 ready", "what was lost to an earlier step is no news"


def test_a_token_older_than_its_claim_is_a_bug_of_the_caller(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    advance(bench, 1)
    (claim,) = bench.claim()
    with pytest.raises(ValueError, match="a token of version 0, claimed at 1"):
        store(bench.db, claim, make_group(claim.task, [1, 0]))


def test_of_groups_that_are_stored_together_each_is_kept_or_refused_by_itself(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=6))
    advance(bench, 1)
    held = kept, expired, old, withdrawn, odd, last = bench.claim()
    claims.settle(bench.db, expired, "dropped", "late")
    tokens = {kept: [1], expired: [1], old: [1, 0], withdrawn: [2], odd: [1], last: [1]}
    groups = {claim: make_group(claim.task, versions) for claim, versions in tokens.items()}
    (its,) = groups[odd].trajectories
    unwritten = dataclasses.replace(its, metrics={"score": object()})
    groups[odd] = dataclasses.replace(groups[odd], trajectories=(unwritten,))
    found = claims.store(bench.db, list(groups.items()))
    kinds = [type(None), StaleWriterError, ValueError, StaleWriterError, TypeError, type(None)]
    assert [type(one) for one in found] == kinds
    states = {row.id: row.state for row in sql(bench.db, "SELECT id, state FROM groups")}
    assert [states[claim.group_id] for claim in held] == ["ready", "dropped", "claimed", "open", "claimed", "ready"]


def test_checkpoint_of_a_replaced_learner_does_not_survive(place: Backend) -> None:
    """P3: a zombie may commit a checkpoint after its successor has begun; nobody may resume from it."""
    bench = LedgerBench(place, make_spec(alpha=0, k=1, b=2))
    zombie = bench.lineage
    advance(bench, 5)
    bench.restart(3)
    assert leases.survives(bench.db, zombie, 3), "its successor grew out of it"
    assert not leases.survives(bench.db, zombie, 4), "its successor started before it"
    assert leases.survives(bench.db, bench.lineage, 4)
