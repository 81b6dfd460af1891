"""An explorer that ends while the disk is full: who lives in the same process sees it, and one line says it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.launch.explorer_process import ExplorerProcess
from rljax.launch.explorer_thread import ExplorerThread
from rljax.ledger import leases, processes, versions
from rljax.ledger.database import Database, LedgerError, RunFailedError, RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline import train
from rljax.pipeline.assemble.learner import StepRunner
from rljax.pipeline.metrics.clock import Clock
from rljax.pipeline.train import Outputs, Trainer

CONFIG = Config(
    wait_timeout=100.0,
    rollout_batch_size=16,
    group_size=8,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)


class Disk:
    """Whether the disk of a ledger is full."""

    full = False


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    begin = SqliteFile.begin_write

    def begin_write(self: SqliteFile, connection: Any) -> None:
        if Disk.full:
            raise sqlite3.OperationalError("database or disk is full")
        begin(self, connection)

    monkeypatch.setattr(SqliteFile, "begin_write", begin_write)
    monkeypatch.setattr(Disk, "full", False)
    opened = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(CONFIG))
    yield opened
    opened.close()


def ended_thread(db: Database, error: Exception) -> ExplorerThread:
    """An explorer in a thread that meets ``error`` while the disk is full."""
    processes.register(db, "e", "explorer")

    async def run() -> None:
        Disk.full = True
        raise error

    async def close() -> None: ...

    explorer: Any = SimpleNamespace(run=run, waiting_for="", stop=lambda: None, ran=lambda *_: None)
    workflows: Any = SimpleNamespace(close=close)
    engine_launcher: Any = SimpleNamespace(close=lambda: None)
    thread = ExplorerThread(db, "e", explorer, workflows, engine_launcher, needed=True)
    thread.start()
    thread.join(30)
    assert not thread.alive
    return thread


def trainer_beside(
    db: Database, thread: ExplorerThread, monkeypatch: pytest.MonkeyPatch, disk_is_full_for: float
) -> Trainer:
    """A learner that waits for a batch; every wait takes a second."""
    seconds = 0.0
    nothing: Any = None
    observers: Any = SimpleNamespace(waiting=lambda *_: None, message=lambda _: None, validation=lambda *_: None)
    learner: Any = SimpleNamespace(architecture=SimpleNamespace(vocab_size=10), steps=0)
    stop = threading.Event()
    outputs = Outputs(nothing, nothing, nothing, observers)
    trainer = Trainer(CONFIG, db, StepRunner(learner, None), outputs, dict, stop, thread.check)
    trainer._lineage = 1

    def wait(_seen: int) -> None:
        nonlocal seconds
        seconds += 1
        Disk.full = Disk.full and seconds < disk_is_full_for

    # A learner reads while it waits, and does not write before a batch is there.
    monkeypatch.setattr(train.leases, "lease", lambda *_: leases.NoBatchYet("generation", "groups: 0 of 2 ready", 0))
    monkeypatch.setattr(db.notifier, "wait", wait)
    monkeypatch.setattr(train.time, "perf_counter", lambda: seconds)
    return trainer


def test_the_learner_is_told_once_the_ledger_can_be_told(db: Database, caplog: Any, capfd: Any) -> None:
    versions.announce(db, leases.begin_lineage(db, 0), 0, "weights/v0")
    thread = ended_thread(db, LedgerError("ledger.db: database or disk is full"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("explorer e ended: LedgerError: ledger.db: database or disk is full; the ledger could not")
    assert "\n" not in line
    assert "Traceback" not in capfd.readouterr().err
    Disk.full = False
    thread.check()
    with pytest.raises(RunFailedError, match="explorer e ended: LedgerError"):
        leases.lease(db, 1)
    thread.check()  # it is told once
    assert db.read(lambda tx: tx.connection.exec_driver_sql("SELECT COUNT(*) FROM events").scalar_one()) == 1


def test_a_learner_that_waits_does_not_wait_for_an_explorer_whose_end_cannot_be_told(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.announce(db, leases.begin_lineage(db, 0), 0, "weights/v0")
    thread = ended_thread(db, ValueError("it broke"))
    trainer = trainer_beside(db, thread, monkeypatch, disk_is_full_for=50)
    with pytest.raises(LedgerError, match=r"^explorer e ended: ValueError: it broke; the ledger could not be told: "):
        trainer._next_batch(Clock())
    assert train.time.perf_counter() <= train.LOOK_FOR_DEAD + 1


def test_while_others_explore_it_is_told_later(db: Database, caplog: Any) -> None:
    processes.register(db, "other", "explorer")
    thread = ended_thread(db, ValueError("it broke"))
    thread.check()
    caplog.clear()
    Disk.full = False
    thread.check()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "explorer e ended: ValueError: it broke; the run goes on without it"


def test_the_end_of_an_explorer_in_another_process_is_told_likewise(db: Database, caplog: Any) -> None:
    def wait() -> str:
        Disk.full = True
        return "process 7 was ended by SIGKILL"

    lineage = leases.begin_lineage(db, 0)
    body: Any = SimpleNamespace(start=lambda: None, wait=wait, stop=lambda: None)
    explorer = ExplorerProcess(db, "e", body, needed=True)
    explorer.start()
    explorer.join(30)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "explorer e ended: process 7 was ended by SIGKILL"
    ]
    with pytest.raises(LedgerError, match="ended by SIGKILL; the ledger could not be told"):
        explorer.check()
    Disk.full = False
    explorer.check()
    with pytest.raises(RunFailedError, match="ended by SIGKILL"):
        leases.lease(db, lineage)


def test_a_child_that_starts_after_it_was_told_to_stop_is_stopped(db: Database) -> None:
    """An interrupt may come while the thread that starts the child has not done so yet."""
    told, stopped = threading.Event(), threading.Event()
    calls: list[str] = []

    def start() -> None:
        assert told.wait(60)
        calls.append("started")

    def stop() -> None:
        calls.append("asked to stop")
        if "started" in calls:
            stopped.set()

    def wait() -> str:
        return "" if stopped.wait(0) else "it was never stopped"

    handle: Any = SimpleNamespace(start=start, wait=wait, stop=stop)
    explorer = ExplorerProcess(db, "e", handle, needed=True)
    explorer.start()
    explorer.stop()
    told.set()
    explorer.join(60)
    assert not explorer.alive
    assert stopped.is_set()
    assert calls == ["asked to stop", "started", "asked to stop"]
