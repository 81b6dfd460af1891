"""Versions and validations in the ledger."""

from __future__ import annotations

import numpy as np
import pytest

from rljax.ledger import leases, processes, validations, versions
from rljax.ledger.backend import Backend
from rljax.ledger.database import StaleWriterError
from tests.ledger.builders import LedgerBench, make_spec


def step(bench: LedgerBench, validate: bool = False) -> None:
    """Trains one batch and announces its version."""
    for claim in bench.claim():
        bench.store(claim)
    bench.indices()
    bench.trained(announce=False)
    bench.publish(bench.steps, validate)


def deletable(bench: LedgerBench, spare: int = 1) -> list[tuple[int, int]]:
    return [(a.version, a.lineage) for a in versions.take_deletable(bench.db, bench.lineage, spare)]


def test_the_newest_version_and_its_probe(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1), learner=False)
    assert versions.newest(bench.db) is None
    bench.lineage = leases.begin_lineage(bench.db, 0)
    probe = np.array([-0.5, -1.25], np.float64)
    versions.announce(bench.db, bench.lineage, 0, "weights/v0-1", probe=probe)
    found = versions.newest(bench.db)
    assert found is not None
    assert (found.version, found.lineage, found.path) == (0, 1, "weights/v0-1")
    assert found.probe is not None
    assert found.probe.dtype == np.float32
    assert found.probe.tolist() == [-0.5, -1.25]


def test_a_restart_withdraws_later_versions(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    step(bench)
    step(bench)
    bench.lineage = leases.begin_lineage(bench.db, 1)
    assert versions.newest(bench.db) is None, "engines wait for the republished version"
    bench.publish(1)
    found = versions.newest(bench.db)
    assert found is not None
    assert (found.version, found.lineage) == (1, 2)


def test_two_explorers_may_both_publish_the_initial_weights(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(), learner=False)
    bench.publish(0)
    bench.publish(0)
    found = versions.newest(bench.db)
    assert found is not None
    assert (found.version, found.lineage) == (0, 0)


@pytest.mark.parametrize("resumed_at", [1, 2])
def test_a_validation_whose_weights_are_gone(place: Backend, resumed_at: int) -> None:
    """Version 1 of lineage 1 was held in the memory of a learner that died before it was validated."""
    bench = LedgerBench(place, make_spec(alpha=4, b=1))
    step(bench, validate=True)
    step(bench)

    def met() -> str:
        pinned = validations.claim_validation(bench.db, "e")
        assert pinned is not None
        assert (pinned.version, pinned.lineage) == (1, 1)
        return validations.settle_lost_validation(bench.db, "e", pinned)

    assert met() == "", "no other learner has published: there is nothing to do but to wait"
    bench.lineage = leases.begin_lineage(bench.db, resumed_at)
    assert met() == "", "nor has this one yet"
    assert validations.running(bench.db) is None, "nobody is held meanwhile"
    bench.publish(resumed_at)
    outcome = met()
    found = validations.claim_validation(bench.db, "e")
    if resumed_at == 1:
        assert outcome == "version 1 of lineage 1 is gone: that of lineage 2 is validated"
        assert found is not None
        assert (found.version, found.lineage) == (1, 2)
    else:
        assert outcome == "version 1 of lineage 1 is gone: it is not validated"
        assert found is None
        assert validations.unfinished(bench.db) == 0


def test_versions_are_deleted_once_nobody_needs_them(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=4, b=1))
    pinned = None
    for validate in (True, False, False, False):
        step(bench, validate)
        processes.heartbeat(bench.db, "e", bench.token, version=2)
        if validate:
            pinned = validations.claim_validation(bench.db, "e")
    assert pinned is not None
    # Of 0 to 4: 3 and 4 are the newest, 2 is in use, 1 is being validated.
    assert deletable(bench) == [(0, 1)]
    assert deletable(bench) == [], "taken once"
    validations.finish_validation(bench.db, "e", pinned, {})
    processes.heartbeat(bench.db, "e", bench.token, version=4)
    assert deletable(bench) == [(1, 1), (2, 1)]
    assert deletable(bench, spare=0) == [(3, 1)], "where nobody may be about to load it"
    assert deletable(bench, spare=0) == []


def test_a_version_is_kept_while_it_is_loaded(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=4, b=1))
    processes.begin_loading(bench.db, "e", 0)
    processes.heartbeat(bench.db, "e", bench.token, version=-1)
    for _ in range(3):
        step(bench)
    # Of 0 to 3: 2 and 3 are the newest, 0 is being read.
    assert deletable(bench) == [(1, 1)]
    processes.end_loading(bench.db, "e", loaded=0)
    step(bench)
    assert deletable(bench) == [(2, 1)], "it serves 0 now, before any heartbeat says so"
    processes.begin_loading(bench.db, "e", 3)
    step(bench)
    assert deletable(bench) == []
    processes.end_loading(bench.db, "e", loaded=None)
    # Of 0, 3, 4 and 5: 3 was not loaded, and 0 is still served.
    assert deletable(bench) == [(3, 1)]


def test_what_the_dead_were_loading_is_deleted(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=4, b=1))
    processes.begin_loading(bench.db, "e", 0)
    for _ in range(2):
        step(bench)
    processes.leave(bench.db, "e", bench.token)
    assert deletable(bench) == [(0, 1)]
    bench.token = processes.register(bench.db, "e", "explorer")
    processes.end_loading(bench.db, "e", loaded=0)


def test_withdrawn_versions_are_deleted_but_never_the_announced_one(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    for _ in range(3):
        step(bench)
    bench.restart(1)
    # Standing: 0 and 1 of lineage 1, 1 of lineage 2. Withdrawn: 2 and 3 of lineage 1.
    assert deletable(bench) == [(0, 1), (2, 1), (3, 1)]


def test_the_largest_gaps_are_kept(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    assert versions.latest_gap(bench.db) is None
    for largest, mean in ((0.25, 0.0625), (0.5, 0.03125), (0.125, 0.125)):
        versions.report_gap(bench.db, 0, 1, largest, mean)
    assert versions.latest_gap(bench.db) == (0, 0.5, 0.125)


def test_a_validation_is_run_once_and_logged_once(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=1))
    step(bench, validate=True)
    assert validations.unfinished(bench.db) == 1
    assert not validations.running(bench.db)
    assert not bench.claim(), "training generation waits for it"
    pinned = validations.claim_validation(bench.db, "e")
    assert pinned is not None
    assert (pinned.version, pinned.lineage) == (1, 1)
    assert validations.running(bench.db)
    assert validations.claim_validation(bench.db, "e") is None
    validations.finish_validation(bench.db, "e", pinned, {"val/a/score": 0.75})
    assert validations.unfinished(bench.db) == 0
    assert list(validations.take_unreported(bench.db)) == [(1, {"val/a/score": 0.75})]
    assert list(validations.take_unreported(bench.db)) == []
    assert validations.results(bench.db) == [(1, {"val/a/score": 0.75})]
    assert bench.claim()


def test_a_result_is_marked_logged_only_after_it_was(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=1, b=1))
    for score in (0.25, 0.75):
        step(bench, validate=True)
        pinned = validations.claim_validation(bench.db, "e")
        assert pinned is not None
        validations.finish_validation(bench.db, "e", pinned, {"val/a/score": score})
    logging = validations.take_unreported(bench.db)
    assert next(logging) == (1, {"val/a/score": 0.25})
    assert next(logging) == (2, {"val/a/score": 0.75})
    logging.close()  # the learner dies over the second
    assert list(validations.take_unreported(bench.db)) == [(2, {"val/a/score": 0.75})]
    assert list(validations.take_unreported(bench.db)) == []


def test_a_validation_is_reclaimed_when_its_explorer_dies(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    other = processes.register(bench.db, "f", "explorer")
    step(bench, validate=True)
    pinned = validations.claim_validation(bench.db, "e")
    assert pinned is not None
    bench.clock.now += 59
    processes.heartbeat(bench.db, "f", other)
    assert validations.claim_validation(bench.db, "f") is None
    bench.clock.now += 2
    processes.heartbeat(bench.db, "f", other)
    again = validations.claim_validation(bench.db, "f")
    assert again is not None
    assert (again.version, again.lineage, again.path) == (pinned.version, pinned.lineage, pinned.path)
    with pytest.raises(StaleWriterError, match="the validation of version 1 is no longer e's"):
        validations.finish_validation(bench.db, "e", pinned, {})
    validations.finish_validation(bench.db, "f", again, {})


def test_a_restart_withdraws_validations_of_lost_versions_and_repeats_no_other(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(alpha=0, b=1))
    step(bench, validate=True)
    done = validations.claim_validation(bench.db, "e")
    assert done is not None
    validations.finish_validation(bench.db, "e", done, {"val/a/score": 0.5})
    step(bench, validate=True)
    lost = validations.claim_validation(bench.db, "e")
    assert lost is not None
    bench.lineage = leases.begin_lineage(bench.db, 1)
    bench.publish(1, validate=True)
    assert validations.unfinished(bench.db) == 0
    with pytest.raises(StaleWriterError, match="the validation of version 2 is no longer e's"):
        validations.finish_validation(bench.db, "e", lost, {})
