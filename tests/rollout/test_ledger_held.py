"""An explorer on a real event loop, whose ledger another connection holds."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from rljax.ledger import claims, retry, sqlite, versions
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.claims import Claim
from rljax.ledger.database import Database
from rljax.ledger.sqlite import SqliteFile
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from rljax.trajectory import Group
from tests.rollout.simulation import SPEC, build


def test_a_ledger_that_another_holds_stops_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lets go of the file is one of the explorer's own members: were they held up with it, it would never be."""
    monkeypatch.setattr(retry, "LOCK_TIMEOUT", 2.0)
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.1)
    stored, store = list[int](), claims.store

    def watched(db: Database, groups: Sequence[tuple[Claim, Group]]) -> list[Exception | None]:
        stored.append(len(groups))
        return store(db, groups)

    monkeypatch.setattr(claims, "store", watched)

    async def main() -> None:
        loop, waits = asyncio.get_running_loop(), asyncio.Event()

        class Watched(SqliteFile):
            def begin_write(self, connection: Connection) -> None:
                if other.in_transaction:
                    loop.call_soon_threadsafe(waits.set)
                super().begin_write(connection)

        async def hold() -> None:
            other.execute("BEGIN IMMEDIATE")
            await waits.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            other.execute("ROLLBACK")

        def misbehave(task: Task, attempt: Attempt) -> Any:
            return hold() if (task.id.index, attempt.member) == (2, 1) else None

        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None, check_same_thread=False)
        db = Database(Watched(tmp_path / "ledger.db"), SPEC)
        versions.announce(db, 0, 0, "weights/v0")
        simulation = build(tmp_path, loop, db=db, ledger=AsyncDatabase(db), misbehave=misbehave, latency=lambda _: 0.0)
        exploring = asyncio.ensure_future(simulation.explorer.run())
        while not exploring.done() and claims.states(db).get("ready") != 4:
            await db.notifier.wait_async(db.notifier.changes)
        simulation.explorer.stop()
        await exploring
        assert waits.is_set()
        assert claims.states(db) == {"ready": 4}
        assert max(stored) > 1, "those that ended while the file was held are stored together"
        other.close()
        db.close()

    asyncio.run(main())
