"""A process that a test halts is halted between its transactions: in one it would hold the lock of all."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from rljax.ledger.database import Database
from rljax.ledger.sqlite import SqliteFile
from sidecar.failpoints import failpoint
from tests.ledger.builders import make_spec
from tests.waiting import HANGS, until


def test_a_halt_waits_for_the_transaction_of_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(SqliteFile(tmp_path / "ledger.db"), make_spec())
    begun, ends, order = threading.Event(), threading.Event(), list[str]()
    (tmp_path / "halts:1").write_text("SIGSTOP")
    monkeypatch.setenv("RLJAX_FAILPOINTS", str(tmp_path))
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: order.append(signal.Signals(number).name))

    def body(tx: object) -> None:
        begun.set()
        assert ends.wait(HANGS)
        order.append("transaction")

    writing = threading.Thread(target=db.write, args=(body,))
    halting = threading.Thread(target=failpoint, args=("halts",))
    writing.start()
    assert begun.wait(HANGS)
    halting.start()
    until(lambda: not (tmp_path / "halts:1").exists())
    halted_early = list(order)
    ends.set()
    for thread in (writing, halting):
        thread.join(HANGS)
    assert halted_early == []
    assert order == ["transaction", "SIGSTOP"]
    db.close()
