"""A step's transactions do the same work however many steps there were: counted in instructions of SQLite's machine."""

from __future__ import annotations

import shutil
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, event

from rljax.ledger import claims, leases, processes, validations, versions
from rljax.ledger.audit import audit
from rljax.ledger.filtered_streak import filtered_by_taskset, filtered_during
from rljax.ledger.sqlite import SqliteFile
from tests.ledger.builders import LedgerBench, fast_directory, make_spec, sql

PERIOD = 6
"""Steps after which what is done repeats itself: every third step filters a group, every second one prunes."""


@dataclass(frozen=True)
class CountingFile(SqliteFile):
    """A file whose connections count the instructions that they execute."""

    executed: list[int] = field(default_factory=lambda: [0])

    def engine(self) -> Engine:
        engine = super().engine()
        event.listen(engine, "connect", lambda connection, record: connection.set_progress_handler(self._count, 1))
        return engine

    def _count(self) -> int:
        self.executed[0] += 1
        return 0  # anything else would interrupt the statement


@pytest.fixture
def file() -> Iterator[CountingFile]:
    directory = fast_directory()
    yield CountingFile(directory / "ledger.db")
    shutil.rmtree(directory, ignore_errors=True)


class Meter:
    """Counts what each kind of call executes."""

    def __init__(self, file: CountingFile) -> None:
        self._executed = file.executed
        self.of: Counter[str] = Counter()

    def __call__(self, name: str, call: Any, *args: Any) -> Any:
        before = self._executed[0]
        result = call(*args)
        self.of[name] += self._executed[0] - before
        return result


def step(bench: LedgerBench, meter: Meter) -> None:
    """One step of an explorer and a trainer, and every transaction that they make in it."""
    db, lineage, number = bench.db, bench.lineage, bench.steps
    for position, claim in enumerate(meter("claim", bench.claim)):
        if position == 0 and number % 3 == 0:
            meter("settle", claims.settle, db, claim, "filtered", "too easy")
        else:
            meter("store", bench.store, claim)
    for claim in meter("claim", bench.claim):
        meter("store", bench.store, claim)
    meter("claim, nothing yet", bench.claim)
    meter("lease", bench.lease)
    meter("mark_trained", leases.mark_trained, db, lineage, number, True)
    meter("announce", bench.publish, number + 1, True)
    pinned = meter("claim_validation", validations.claim_validation, db, "e")
    meter("finish_validation", validations.finish_validation, db, "e", pinned, {"score": 1.0})
    meter("take_unreported", lambda: list(validations.take_unreported(db)))
    meter("claim_validation, none", validations.claim_validation, db, "e")
    meter("report_gap", versions.report_gap, db, number + 1, lineage, 0.1, 0.1)
    for name in ("take_deletable", "prune_payloads"):
        if name == "take_deletable":
            meter(name, versions.take_deletable, db, lineage)
        elif number % 2 == 0:
            meter(name, leases.prune_payloads, db, lineage, max(number - 3, 0))
    for read in (versions.standing, versions.newest, versions.latest_gap, validations.unfinished, processes.tokens):
        meter(read.__name__, read, db)
    for counted in (filtered_during, filtered_by_taskset):
        meter(counted.__name__, counted, db, number)
    meter("heartbeat", processes.heartbeat, db, "e", bench.token, number)
    meter("held_by", claims.held_by, db, "e")


def test_an_audit_holds_little_of_each_group(file: CountingFile) -> None:
    groups, size = 5000, 100
    bench = LedgerBench(file, make_spec(alpha=1, b=size), learner=False)
    numbers = f"WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < {groups - 1})"
    names = "id, taskset, epoch, task_index, state, claim, explorer, version, deadline, claimed_at, retired, step"
    values = f"i + 1, 'a', 0, i, 'trained', i, 'e', i / {size}, i / {size}, 0, 0, i / {size}"
    sql(bench.db, f"INSERT INTO groups ({names}) {numbers} SELECT {values} FROM c")
    counts = f"json_object(CAST(i / {size} AS TEXT), 7)"
    sql(bench.db, f"INSERT INTO batches {numbers} SELECT 1, i / {size}, i % {size}, i + 1, {counts} FROM c")
    sql(bench.db, "UPDATE run SET trained = :steps", steps=groups // size)
    audit(bench.db)  # imports, and what SQLAlchemy keeps of each statement
    tracemalloc.start()
    try:
        found = audit(bench.db)
        held = tracemalloc.get_traced_memory()[1] / groups
    finally:
        tracemalloc.stop()
    assert (found["trained"], found["staleness_histogram"]) == (groups, {"0": 7 * groups})
    assert held < 450  # bytes: 340, and 660 when the version counts of all groups were held


@pytest.mark.parametrize("max_uses", [1, 2])
def test_what_a_step_asks_of_the_ledger_does_not_grow_with_the_steps_before_it(
    file: CountingFile, max_uses: int
) -> None:
    spec = make_spec(alpha=3, b=4, extra=2, max_uses=max_uses, reused_groups=2 * (max_uses - 1), max_steps=10**6)
    bench = LedgerBench(file, spec, size=10**6)
    periods = []
    for _ in range(16):
        meter = Meter(file)
        for _ in range(PERIOD):
            step(bench, meter)
        periods.append(meter.of)
    early, late = periods[3], periods[-1]
    assert {name: late[name] for name in late if late[name] > 1.05 * early[name]} == {}


def test_pruning_keeps_what_a_kept_checkpoint_may_replay_and_nothing_before_it(file: CountingFile) -> None:
    bench = LedgerBench(file, make_spec(alpha=1, b=2))
    for _ in range(6):
        for claim in bench.claim():
            bench.store(claim)
        bench.lease()
        bench.trained()
    for before in (2, 4):
        leases.prune_payloads(bench.db, bench.lineage, before)
    assert [batch.step for batch in leases.recorded_batches(bench.db, 4, 6)] == [4, 5]
    bench.restart(4)
    assert bench.indices() == [8, 9]
    bench.trained()
    leases.prune_payloads(bench.db, bench.lineage, 5)
    kept = bench.db.read(lambda tx: tx.connection.exec_driver_sql("SELECT group_id FROM payloads ORDER BY 1").all())
    assert [row[0] for row in kept] == [11, 12]  # of step 5; what was claimed after it was lost with its lineage
