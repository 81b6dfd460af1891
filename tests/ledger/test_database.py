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
from sqlalchemy import text

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.ledger import claims, database, leases, processes, versions
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.database import Database, LedgerError
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.schema import SCHEMA_VERSION
from rljax.ledger.sqlite import SqliteFile
from rljax.ledger.transaction import Transaction
from tests.ledger.builders import LedgerBench, make_spec, sql


def refusal(place: Backend, spec: RunSpec | None) -> str:
    """The one line that opening this ledger fails with."""
    with pytest.raises(LedgerError) as info:
        Database(place, spec)
    line = str(info.value)
    assert "\n" not in line
    assert line.startswith(place.label)
    return line


def test_a_ledger_is_opened_again_with_the_same_spec_or_none(place: Backend) -> None:
    spec = make_spec(alpha=0.5)
    Database(place, spec).close()
    assert Database(place, spec).spec == spec
    assert Database(place, None).spec == spec


def test_there_must_be_one_to_open_without_a_spec(place: Backend) -> None:
    assert "no ledger here; start a run first" in refusal(place, None)
    assert not (place).exists()


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
def test_another_spec_is_refused_by_the_keys_name(place: Backend, field: str, value: Any, words: str) -> None:
    spec = make_spec(alpha=1.0)
    processes.register(Database(place, spec), "e", "explorer")
    assert words in refusal(place, dataclasses.replace(spec, **{field: value}))


def test_a_config_may_be_corrected_until_somebody_goes_by_it(place: Backend) -> None:
    Database(place, make_spec(alpha=1.0)).close()
    corrected = make_spec(alpha=2.0)
    assert Database(place, corrected).spec == corrected
    assert Database(place, None).spec == corrected


def test_what_may_change_between_starts(place: Backend) -> None:
    spec = make_spec(max_steps=10)
    Database(place, spec).close()
    longer = dataclasses.replace(spec, max_steps=20, total_epochs=3, claim_timeout=5.0)
    Database(place, longer).close()
    assert Database(place, None).spec == longer


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_steps", 1, "max_steps=20, the config says 1"),
        ("total_epochs", 2, "total_epochs=None, the config says 2"),
        ("claim_timeout", 5.0, "rollout.claim_timeout=60.0, the config says 5.0"),
    ],
)
def test_nothing_changes_while_somebody_goes_by_it(place: Backend, field: str, value: Any, words: str) -> None:
    spec = make_spec(max_steps=20)
    changed = dataclasses.replace(spec, **{field: value})
    db = Database(place, spec)
    token = processes.register(db, "trainer", "trainer")
    who = f"trainer is alive (pid {os.getpid()} on {socket.gethostname()})"
    assert f"{words}, and {who}; end it first, or use the run's own value" in refusal(place, changed)
    assert Database(place, None).spec == spec, "whoever only looks is let in, and nothing was written"
    processes.leave(db, "trainer", token)
    assert Database(place, changed).spec == changed


def test_a_killed_process_keeps_nobody_from_changing_the_end(place: Backend) -> None:
    spec = make_spec(max_steps=20)
    processes.register(Database(place, spec), "trainer", "trainer")
    longer = Database(place, None)
    sql(longer, "UPDATE processes SET started = started - 30")  # its pid has been given to another since
    longer = Database(place, make_spec(max_steps=50))
    processes.register(longer, "trainer", "trainer")
    assert "max_steps=50, the config says 20" in refusal(place, spec)


def test_of_two_that_open_a_run_at_once_the_first_to_begin_decides(place: Backend) -> None:
    trainer, explorer = Database(place, make_spec(max_steps=20)), Database(place, make_spec(max_steps=1))
    processes.register(trainer, "trainer", "trainer")
    assert Database(place, None).spec.max_steps == 20
    with pytest.raises(LedgerError, match="this run has max_steps=20, the config says 1, and trainer is alive"):
        processes.register(explorer, "e", "explorer")
    assert sql(trainer, "SELECT name FROM processes") == [("trainer",)]


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


def test_another_schema_version_is_refused(place: Backend) -> None:
    sql(Database(place, make_spec()), "UPDATE run SET schema_version = 999")
    line = refusal(place, make_spec())
    assert f"ledger of schema version 999, this program reads {SCHEMA_VERSION}; finish the run with" in line


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"quite something else" * 100)
    line = refusal(SqliteFile(path), make_spec())
    assert "cannot be used as a ledger (file is not a database); move it away or choose another run_dir" in line
    assert path.read_bytes() == b"quite something else" * 100


def use(place: Backend) -> str:
    """Why a ledger with groups that are ready cannot be used; empty if it can."""
    try:
        db = Database(place, None)
    except LedgerError as error:
        return str(error)
    try:
        audit(db)
        leases.lease(db, leases.begin_lineage(db, 0))
        processes.register(db, "other", "explorer")
        processes.note(db, "other", "kind", "message")
    except LedgerError as error:
        return str(error)
    finally:
        db.close()
    return ""


def test_a_damaged_page_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    """Each page of a ledger in turn has all its bits turned; whoever comes upon it says which file it is."""
    path = tmp_path / "ledger.db"
    bench = LedgerBench(SqliteFile(path), make_spec(alpha=1, b=2))
    for claim in bench.claim():
        bench.store(claim)
    bench.db.close()
    whole = path.read_bytes()
    said = []
    for begin in range(0, len(whole), 4096):
        page = bytes(255 - byte for byte in whole[begin : begin + 4096])
        path.write_bytes(whole[:begin] + page + whole[begin + 4096 :])
        said.append(use(SqliteFile(path)))
        for left in tmp_path.glob("ledger.db-*"):
            left.unlink()
    lines = [line for line in said if line]
    assert len(lines) > len(said) // 2
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in lines), lines


@pytest.mark.parametrize("other", [False, True])
def test_a_ledger_that_vanishes_is_one_line_and_does_not_come_back(tmp_path: Path, other: bool) -> None:
    path = tmp_path / "run" / "ledger.db"
    path.parent.mkdir()
    bench = LedgerBench(SqliteFile(path), make_spec())
    path.parent.rename(tmp_path / "elsewhere")
    if other:
        path.parent.mkdir()
        Database(SqliteFile(path), make_spec()).close()
    for ask in (lambda: processes.note(bench.db, "e", "kind", "message"), lambda: versions.newest(bench.db)):
        with pytest.raises(LedgerError) as error:
            ask()
        words = "another file has taken the place" if other else "it is gone, with all that the run knew: removed"
        assert str(error.value).startswith(f"{path}: {words}")
    assert path.exists() == other


def test_a_database_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE holidays (name TEXT)")
    assert "a database, but not a ledger; choose another run_dir" in refusal(SqliteFile(path), make_spec())


def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "unable to open database file; check the disk's space and permissions" in refusal(
        SqliteFile(tmp_path / "file" / "ledger.db"), make_spec()
    )


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    """With sync_method=nccl the key of the learner's channel stands in it."""
    before = os.umask(0)
    try:
        LedgerBench(SqliteFile(tmp_path / "ledger.db"), make_spec()).claim()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes["ledger.db"] == 0o600
    assert set(modes.values()) == {0o600}, "the journals beside it hold the same"


def test_a_file_of_an_earlier_rljax_is_made_its_owners_alone(tmp_path: Path) -> None:
    first = LedgerBench(SqliteFile(tmp_path / "ledger.db"), make_spec())
    first.claim()
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    Database(SqliteFile(tmp_path / "ledger.db"), make_spec())
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("ledger.db", "ledger.db-shm", "ledger.db-wal"), 0o600)


@pytest.mark.skipif(os.geteuid() == 0, reason="no permission stops root")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "unable to open database file; check the disk's space and permissions" in refusal(
        SqliteFile(closed / "ledger.db"), make_spec()
    )


def test_a_full_disk_is_one_line_and_loses_nothing_that_was_written(tmp_path: Path) -> None:
    bench = LedgerBench(SqliteFile(tmp_path / "ledger.db"), make_spec())
    claimed = bench.claim()

    def flood(tx: Transaction) -> None:
        pages = tx.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        tx.connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        for _ in range(100):
            database.record_event(tx, "e", "flood", "x" * 2000)

    with pytest.raises(LedgerError, match=r"ledger\.db: database or disk is full; check the disk's space"):
        bench.db.write(flood)
    assert claims.states(bench.db) == {"claimed": len(claimed)}
    assert sql(bench.db, "SELECT count(*) FROM events") == [(0,)]


def test_a_transaction_that_raises_leaves_nothing_behind(place: Backend) -> None:
    db = Database(place, make_spec())
    seen = db.notifier.changes

    def fail(tx: Transaction) -> None:
        database.record_event(tx, "e", "half", "done")
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        db.write(fail)
    assert sql(db, "SELECT count(*) FROM events") == [(0,)]
    assert db.notifier.changes == seen, "only what is committed wakes anybody"
    processes.note(db, "e", "whole", "done")
    assert db.notifier.changes == seen + 1


def test_readers_see_a_snapshot_while_a_writer_is_at_work(place: Backend) -> None:
    db = Database(place, make_spec())

    def events(tx: Transaction) -> int:
        return int(tx.execute(text("SELECT count(*) FROM events")).scalar_one())

    def write(tx: Transaction) -> None:
        database.record_event(tx, "e", "kind", "message")
        assert db.read(events) == 0

    db.write(write)
    assert db.read(events) == 1


def test_a_reader_sees_one_moment(place: Backend) -> None:
    db = Database(place, make_spec())

    def twice(tx: Transaction) -> list[int]:
        count = text("SELECT count(*) FROM events")
        before = int(tx.execute(count).scalar_one())
        processes.note(db, "e", "kind", "message")
        return [before, int(tx.execute(count).scalar_one())]

    assert db.read(twice) == [0, 0]


def test_text_of_any_kind_can_be_noted(place: Backend) -> None:
    """A fault's message may quote whatever a model has said."""
    db = Database(place, make_spec())
    processes.note(db, "e", "kind", "a\0b\ud800c")
    assert sql(db, "SELECT message FROM events") == [("a\ufffdb?c",)]


def test_a_run_directory_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    bench = LedgerBench(SqliteFile(tmp_path / "old" / "ledger.db"), make_spec())
    bench.store(bench.claim()[0])
    bench.db.close()
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert claims.states(Database(SqliteFile(tmp_path / "new" / "ledger.db"), None))["ready"] == 1
