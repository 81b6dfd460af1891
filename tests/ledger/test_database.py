"""Opening a ledger, and everything a disk can do to it: one clear line each."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from rljax.config import Config, TasksConfig, TasksetConfig
from rljax.ledger import claims, database, processes
from rljax.ledger.database import Database, LedgerError, RunSpec, retry_while_locked
from rljax.ledger.schema import SCHEMA_VERSION
from tests.ledger.builders import Bench, make_spec


def refusal(path: Path, spec: RunSpec | None) -> str:
    """The one line that opening this ledger fails with."""
    with pytest.raises(LedgerError) as info:
        Database(path, spec)
    line = str(info.value)
    assert "\n" not in line
    assert line.startswith(str(path))
    return line


def test_a_ledger_is_opened_again_with_the_same_spec_or_none(tmp_path: Path) -> None:
    spec = make_spec(alpha=0.5)
    Database(tmp_path / "ledger.db", spec).close()
    assert Database(tmp_path / "ledger.db", spec).spec == spec
    assert Database(tmp_path / "ledger.db", None).spec == spec


def test_there_must_be_one_to_open_without_a_spec(tmp_path: Path) -> None:
    assert "no ledger here; start a run first" in refusal(tmp_path / "ledger.db", None)
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("alpha", 2.0, "async_generation_ratio=1.0, the config says 2.0"),
        ("batch_groups", 5, "rollout_batch_size / group_size=2, the config says 5"),
        ("staleness_bound", 4, "max_staleness=1, the config says 4"),
        ("seed", 7, "seed=0, the config says 7"),
        ("group_size", 3, "group_size=1, the config says 3"),
        ("sync_interval", 3, "sync_interval=1, the config says 3"),
    ],
)
def test_another_spec_is_refused_by_the_keys_name(tmp_path: Path, field: str, value: Any, words: str) -> None:
    path = tmp_path / "ledger.db"
    spec = make_spec(alpha=1.0)
    processes.register(Database(path, spec), "e", "explorer")
    assert words in refusal(path, dataclasses.replace(spec, **{field: value}))


def test_a_config_may_be_corrected_until_somebody_goes_by_it(tmp_path: Path) -> None:
    Database(tmp_path / "ledger.db", make_spec(alpha=1.0)).close()
    corrected = make_spec(alpha=2.0)
    assert Database(tmp_path / "ledger.db", corrected).spec == corrected
    assert Database(tmp_path / "ledger.db", None).spec == corrected


def test_what_may_change_between_starts(tmp_path: Path) -> None:
    spec = make_spec(max_steps=10)
    Database(tmp_path / "ledger.db", spec).close()
    longer = dataclasses.replace(spec, max_steps=20, total_epochs=3, claim_timeout=5.0)
    Database(tmp_path / "ledger.db", longer).close()
    assert Database(tmp_path / "ledger.db", None).spec == longer


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_steps", 1, "max_steps=20, the config says 1"),
        ("total_epochs", 2, "total_epochs=None, the config says 2"),
        ("claim_timeout", 5.0, "rollout.claim_timeout=60.0, the config says 5.0"),
    ],
)
def test_nothing_changes_while_somebody_goes_by_it(tmp_path: Path, field: str, value: Any, words: str) -> None:
    path, spec = tmp_path / "ledger.db", make_spec(max_steps=20)
    changed = dataclasses.replace(spec, **{field: value})
    db = Database(path, spec)
    token = processes.register(db, "trainer", "trainer")
    who = f"trainer is alive (pid {os.getpid()} on {socket.gethostname()})"
    assert f"{words}, and {who}; end it first, or use the run's own value" in refusal(path, changed)
    assert Database(path, None).spec == spec, "whoever only looks is let in, and nothing was written"
    processes.leave(db, "trainer", token)
    assert Database(path, changed).spec == changed


def test_a_killed_process_keeps_nobody_from_changing_the_end(tmp_path: Path) -> None:
    path, spec = tmp_path / "ledger.db", make_spec(max_steps=20)
    processes.register(Database(path, spec), "trainer", "trainer")
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE processes SET started = started - 30")  # its pid has been given to another since
    longer = Database(path, make_spec(max_steps=50))
    processes.register(longer, "trainer", "trainer")
    assert "max_steps=50, the config says 20" in refusal(path, spec)


def test_of_two_that_open_a_run_at_once_the_first_to_begin_decides(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    trainer, explorer = Database(path, make_spec(max_steps=20)), Database(path, make_spec(max_steps=1))
    processes.register(trainer, "trainer", "trainer")
    assert Database(path, None).spec.max_steps == 20
    with pytest.raises(LedgerError, match="this run has max_steps=20, the config says 1, and trainer is alive"):
        processes.register(explorer, "e", "explorer")
    with trainer.read() as tx:
        assert tx.exec_driver_sql("SELECT name FROM processes").scalars().all() == ["trainer"]


def test_the_spec_of_a_config() -> None:
    tasks = TasksConfig(train={"t": TasksetConfig(source="reverse_digits")})
    config = Config(
        rollout_batch_size=24,
        group_size=8,
        async_generation_ratio=1.5,
        sync_interval=3,
        max_steps=7,
        seed=5,
        tasks=tasks,
    )
    assert RunSpec.of(config) == RunSpec(
        seed=5,
        group_size=8,
        batch_groups=3,
        alpha=1.5,
        staleness_bound=4,  # ⌈1.5⌉ + 3 − 1
        sync_interval=3,
        max_steps=7,
        total_epochs=None,
        claim_timeout=60.0,
    )


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Database(path, make_spec()).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE run SET schema_version = 999")
    line = refusal(path, make_spec())
    assert f"ledger of schema version 999, this program reads {SCHEMA_VERSION}; finish the run with" in line


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"quite something else" * 100)
    line = refusal(path, make_spec())
    assert "cannot be used as a ledger (file is not a database); move it away or choose another run_dir" in line
    assert path.read_bytes() == b"quite something else" * 100


def test_a_database_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE holidays (name TEXT)")
    assert "a database, but not a ledger; choose another run_dir" in refusal(path, make_spec())


def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "unable to open database file; check the disk's space and permissions" in refusal(
        tmp_path / "file" / "ledger.db", make_spec()
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="no permission stops root")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "unable to open database file; check the disk's space and permissions" in refusal(
        closed / "ledger.db", make_spec()
    )


def test_a_full_disk_is_one_line_and_loses_nothing_that_was_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_spec())
    claimed = bench.claim()

    def flood() -> None:
        with bench.db.transaction() as tx:
            pages = tx.exec_driver_sql("PRAGMA page_count").scalar_one()
            tx.exec_driver_sql(f"PRAGMA max_page_count={pages}")
            for _ in range(100):
                database.record_event(tx, 0.0, "e", "flood", "x" * 2000)

    with pytest.raises(LedgerError, match=r"ledger\.db: database or disk is full; check the disk's space"):
        flood()
    assert claims.states(bench.db) == {"claimed": len(claimed)}
    with bench.db.read() as tx:
        assert tx.exec_driver_sql("SELECT count(*) FROM events").scalar_one() == 0


def test_a_transaction_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    db = Database(tmp_path / "ledger.db", make_spec())
    seen = db.notifier.changes

    def fail() -> None:
        with db.transaction() as tx:
            database.record_event(tx, 0.0, "e", "half", "done")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with db.read() as tx:
        assert tx.exec_driver_sql("SELECT count(*) FROM events").scalar_one() == 0
    assert db.notifier.changes == seen, "only what is committed wakes anybody"
    processes.note(db, "e", "whole", "done")
    assert db.notifier.changes == seen + 1


def test_readers_see_a_snapshot_while_a_writer_is_at_work(tmp_path: Path) -> None:
    db = Database(tmp_path / "ledger.db", make_spec())
    count = "SELECT count(*) FROM events"
    with db.transaction() as writer:
        database.record_event(writer, 0.0, "e", "kind", "message")
        with db.read() as reader:
            assert reader.exec_driver_sql(count).scalar_one() == 0
    with db.read() as reader:
        assert reader.exec_driver_sql(count).scalar_one() == 1


def locked() -> OperationalError:
    return OperationalError("BEGIN IMMEDIATE", {}, sqlite3.OperationalError("database is locked"))


def test_a_locked_ledger_is_tried_again_with_growing_pauses() -> None:
    outcomes: list[Exception | str] = [locked(), locked(), sqlite3.OperationalError("database is locked"), "done"]
    pauses: list[float] = []

    def action() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retry_while_locked(action, now=lambda: 0.0, sleep=pauses.append) == "done"
    for pause, longest in zip(pauses, [0.01, 0.02, 0.04], strict=True):
        assert longest / 2 <= pause <= longest


def test_a_ledger_that_stays_locked_is_an_error_in_the_end() -> None:
    now = 0.0
    tries = 0

    def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds <= 1.0
        now += seconds

    def action() -> None:
        nonlocal tries
        tries += 1
        raise locked()

    with pytest.raises(OperationalError, match="locked"):
        retry_while_locked(action, now=lambda: now, sleep=sleep)
    assert database.LOCK_TIMEOUT < now < database.LOCK_TIMEOUT + 2
    assert tries > 60


def test_other_errors_are_not_tried_again() -> None:
    def action() -> None:
        raise OperationalError("", {}, sqlite3.OperationalError("no such table: groups"))

    with pytest.raises(OperationalError, match="no such table"):
        retry_while_locked(action, sleep=lambda _: pytest.fail("it waited"))


def test_a_lock_that_is_never_released_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    db = Database(path, make_spec())
    monkeypatch.setattr(database, "LOCK_TIMEOUT", -1.0)
    with db.read() as tx:
        tx.exec_driver_sql("PRAGMA busy_timeout=0")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"ledger\.db: database is locked; check .* who else holds the file"):  # noqa: SIM117
        with db.transaction():
            pytest.fail("it began")
    holder.close()


def test_a_run_directory_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    bench = Bench(tmp_path / "old", make_spec())
    bench.store(bench.claim()[0])
    bench.db.close()
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert claims.states(Database(tmp_path / "new" / "ledger.db", None))["ready"] == 1
