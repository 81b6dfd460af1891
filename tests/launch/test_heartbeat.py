"""A heartbeat goes on beating whatever the ledger says, until another process has taken its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax.launch import heartbeat
from rljax.ledger import processes
from rljax.ledger.database import Database, LedgerError
from rljax.ledger.sqlite import SqliteFile
from tests.ledger.builders import make_spec, sql
from tests.waiting import until


def test_a_ledger_that_fails_while_a_life_is_taken_up_again_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Database(SqliteFile(tmp_path / "ledger.db"), make_spec())
    revive, failures = processes.revive, [LedgerError("ledger.db: database is locked")]

    def fail_once(db: Database, name: str, token: str) -> bool:
        if failures:
            raise failures.pop()
        return revive(db, name, token)

    monkeypatch.setattr(processes, "revive", fail_once)
    monkeypatch.setattr(heartbeat, "SECONDS", 0.01)
    trainer = heartbeat.TrainerHeartbeat(db)
    sql(db, "UPDATE processes SET alive=:no", no=False)
    alive = "SELECT alive FROM processes"
    until(lambda: sql(db, alive)[0].alive or not trainer._thread.is_alive())
    assert sql(db, alive)[0].alive
    assert not failures
    trainer.close()
    db.close()


def test_a_former_trainer_on_another_machine_is_waited_for_until_it_is_known_to_be_dead(tmp_path: Path) -> None:
    db = Database(SqliteFile(tmp_path / "ledger.db"), make_spec(claim_timeout=0.5))
    processes.register(db, heartbeat.NAME, role="trainer")
    sql(db, "UPDATE processes SET host=:other", other="another-machine")
    with pytest.raises(processes.AliveError, match="on another-machine"):
        heartbeat.TrainerHeartbeat(db)
    heartbeat.TrainerHeartbeat(db, patience=60.0).close()
    db.close()


def test_one_that_lives_on_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    db = Database(SqliteFile(tmp_path / "ledger.db"), make_spec())
    first = heartbeat.TrainerHeartbeat(db)
    with pytest.raises(processes.AliveError):
        heartbeat.TrainerHeartbeat(db, patience=1e9)
    first.close()
    db.close()
