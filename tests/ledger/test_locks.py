"""A ledger that others hold: tried again for a while, and then one clear line."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from rljax.ledger import postgres
from rljax.ledger import retry as retrying
from rljax.ledger.database import Database, LedgerError
from rljax.ledger.retry import retry
from rljax.ledger.sqlite import SqliteFile
from rljax.ledger.transaction import Transaction
from tests.ledger.builders import make_spec
from tests.postgres import Server


def is_locked(error: Exception) -> bool:
    return SqliteFile(Path("ledger.db")).passes(error, True)


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

    assert retry(action, is_locked, now=lambda: 0.0, sleep=pauses.append) == "done"
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
        retry(action, is_locked, now=lambda: now, sleep=sleep)
    assert retrying.LOCK_TIMEOUT < now < retrying.LOCK_TIMEOUT + 2
    assert tries > 60


def test_other_errors_are_not_tried_again() -> None:
    def action() -> None:
        raise OperationalError("", {}, sqlite3.OperationalError("no such table: groups"))

    with pytest.raises(OperationalError, match="no such table"):
        retry(action, is_locked, sleep=lambda _: pytest.fail("it waited"))


@pytest.mark.parametrize("words", ["database or disk is full", "disk I/O error"])
def test_nor_are_they_for_what_was_to_be_written(words: str) -> None:
    """The gauges of an explorer have names that a lock's error has too."""
    written = {"gauges": '{"busy_seconds": 2.5, "locked": 1.0}'}
    assert not is_locked(OperationalError("UPDATE busy SET locked = 1", written, sqlite3.OperationalError(words)))


def test_a_lock_that_is_never_released_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    db = Database(SqliteFile(path), make_spec())
    monkeypatch.setattr(retrying, "LOCK_TIMEOUT", -1.0)
    db.read(lambda tx: tx.execute(text("PRAGMA busy_timeout=0")))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"ledger\.db: database is locked; check .* who else holds the file"):
        db.write(lambda _: pytest.fail("it began"))
    holder.close()


def test_a_lock_that_postgresql_never_releases_is_one_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres.SESSION, "lock_timeout", "10ms")
    place = server.new_schema()
    db, other = Database(place, make_spec()), Database(place, None)
    monkeypatch.setattr(retrying, "LOCK_TIMEOUT", -1.0)

    def hold(_: Transaction) -> None:
        with pytest.raises(LedgerError, match=r"schema ledger_\d+: canceling statement due to lock timeout.*; check"):
            other.write(lambda _: pytest.fail("it began"))

    db.write(hold)
