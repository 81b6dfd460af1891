"""The ledger for coroutines: what waits for the file's lock holds nobody else up, and no call is half made."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from rljax.ledger import processes, schema
from rljax.ledger.async_database import TOGETHER, AsyncDatabase
from rljax.ledger.database import Database, LedgerError, StaleWriterError
from rljax.ledger.sqlite import SqliteFile
from tests.ledger.builders import make_spec


class Watched(SqliteFile):
    """Says when somebody is about to wait for the file's lock."""

    told: Callable[[], object] = staticmethod(lambda: None)

    def begin_write(self, connection: Connection) -> None:
        type(self).told()
        super().begin_write(connection)


@pytest.fixture
def file(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "ledger.db")


@asynccontextmanager
async def locked(file: SqliteFile) -> AsyncIterator[asyncio.Event]:
    """Another connection holds the file's lock; the event says that somebody waits for it."""
    loop, waits = asyncio.get_running_loop(), asyncio.Event()
    other = sqlite3.connect(file.path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        Watched.told = staticmethod(lambda: loop.call_soon_threadsafe(waits.set))
        yield waits
    finally:
        Watched.told = staticmethod(lambda: None)
        other.execute("ROLLBACK")
        other.close()


def run(file: Watched, act: Callable[[AsyncDatabase, Database], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        db = Database(file, make_spec())
        ledger = AsyncDatabase(db)
        try:
            async with asyncio.timeout(60.0):
                await act(ledger, db)
        finally:
            await ledger.close()
            db.close()

    asyncio.run(main())


def notes(db: Database) -> list[str]:
    events = select(schema.events).order_by(schema.events.c.id)
    return db.read(lambda tx: [row.message for row in tx.execute(events)])


def noted(db: Database, messages: Sequence[str]) -> list[str | Exception]:
    """Notes all of them at once; of what is ``bad`` it says so."""
    processes.note(db, "e", "fault", "+".join(messages))
    return [ValueError(message) if message == "bad" else message.upper() for message in messages]


def test_a_call_that_waits_for_the_lock_holds_nobody_else_up(file: Watched) -> None:
    """The lock is let go of by the event loop itself: were that held up, nobody would ever do so."""

    async def act(ledger: AsyncDatabase, db: Database) -> None:
        async with locked(file) as waits:
            noting = asyncio.ensure_future(ledger.call(processes.note, "e", "fault", "first"))
            await waits.wait()
            assert not noting.done()
        await noting
        assert notes(db) == ["first"]

    run(file, act)


def test_calls_are_made_in_their_order_and_what_they_raise_is_raised(file: Watched) -> None:
    async def act(ledger: AsyncDatabase, db: Database) -> None:
        async with locked(file):
            calls = [asyncio.ensure_future(ledger.call(processes.note, "e", "fault", str(n))) for n in range(3)]
            await asyncio.sleep(0)
            ledger.post(processes.note, "e", "fault", "posted")
            calls.append(asyncio.ensure_future(ledger.call(processes.note, "e", "fault", "last")))
        await asyncio.gather(*calls)
        assert notes(db) == ["0", "1", "2", "posted", "last"]
        with pytest.raises(StaleWriterError, match="declared dead"):
            await ledger.call(processes.heartbeat, "nobody", "token")

    run(file, act)


def test_a_call_that_is_cancelled_before_its_turn_is_not_made(file: Watched) -> None:
    async def act(ledger: AsyncDatabase, db: Database) -> None:
        async with locked(file) as waits:
            first = asyncio.ensure_future(ledger.call(processes.note, "e", "fault", "first"))
            second = asyncio.ensure_future(ledger.call(processes.note, "e", "fault", "second"))
            await waits.wait()
            second.cancel()
            await asyncio.wait([second])
        await first
        await ledger.call(processes.note, "e", "fault", "third")
        assert notes(db) == ["first", "third"]

    run(file, act)


@pytest.mark.parametrize(
    "ask",
    [
        lambda ledger: ledger.call(processes.note, "e", "fault", "first"),
        lambda ledger: ledger.call_together(noted, "first"),
    ],
    ids=["alone", "together"],
)
def test_who_is_cancelled_while_his_call_runs_goes_on_when_it_has_ended(
    file: Watched, ask: Callable[[AsyncDatabase], Coroutine[Any, Any, None]]
) -> None:
    async def act(ledger: AsyncDatabase, db: Database) -> None:
        async with locked(file) as waits:
            noting = asyncio.ensure_future(ask(ledger))
            await waits.wait()
            for _ in range(2):  # however often he is
                noting.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)
            assert not noting.done(), "its transaction is still to be made"
        with pytest.raises(asyncio.CancelledError):
            await noting
        assert notes(db) == ["first"]

    run(file, act)


def test_who_waits_together_is_one_call_and_each_has_a_result_of_his_own(file: Watched) -> None:
    async def act(ledger: AsyncDatabase, db: Database) -> None:
        async with locked(file) as waits:
            alone = asyncio.ensure_future(ledger.call_together(noted, "a"))
            await waits.wait()
            asked = [asyncio.ensure_future(ledger.call_together(noted, one)) for one in ("b", "bad", "c", "d")]
            await asyncio.sleep(0)
            asked[2].cancel()
            await asyncio.wait([asked[2]])
        assert await alone == "A"
        b, bad, c, d = await asyncio.gather(*asked, return_exceptions=True)
        assert (b, d) == ("B", "D")
        assert (type(bad), str(bad)) == (ValueError, "bad")
        assert isinstance(c, asyncio.CancelledError)
        assert notes(db) == ["a", "b+bad+d"], "what is under way nobody joins, and who was cancelled is not in it"

    run(file, act)


def test_of_many_so_many_are_one_call_and_no_more_and_none_is_forgotten(file: Watched) -> None:
    async def act(ledger: AsyncDatabase, db: Database) -> None:
        names = [f"{n}" for n in range(2 * TOGETHER + 1)]
        async with locked(file) as waits:
            ledger.post(processes.note, "e", "fault", "posted")
            await waits.wait()
            asked = [asyncio.ensure_future(ledger.call_together(noted, name)) for name in names]
            await asyncio.sleep(0)
        assert await asyncio.gather(*asked) == names
        first, second, third = names[:TOGETHER], names[TOGETHER:-1], names[-1:]
        assert notes(db) == ["posted", *map("+".join, (first, second, third))]

    run(file, act)


def test_a_function_that_forgets_a_caller_is_said_to_all(file: Watched) -> None:
    async def act(ledger: AsyncDatabase, db: Database) -> None:
        def forgets(db: Database, messages: Sequence[str]) -> list[str]:
            return list(messages[1:])

        with pytest.raises(RuntimeError, match="forgets: 0 results of 1 arguments"):
            await ledger.call_together(forgets, "a")

    run(file, act)


def test_what_the_call_of_all_raises_all_raise_and_nobody_waits_for_a_thread_that_has_ended(file: Watched) -> None:
    def full(db: Database, messages: Sequence[str]) -> list[str]:
        raise LedgerError("ledger.db: database or disk is full")

    async def main() -> None:
        db = Database(file, make_spec())
        ledger = AsyncDatabase(db)
        async with asyncio.timeout(60.0), locked(file):
            ledger.post(processes.note, "e", "fault", "posted")
            asked = [asyncio.ensure_future(ledger.call_together(full, one)) for one in "ab"]
            await asyncio.sleep(0)
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, LedgerError)
        await ledger.close()
        async with asyncio.timeout(60.0):
            for _ in range(2):
                with pytest.raises(RuntimeError, match="shutdown"):
                    await ledger.call_together(full, "late")
        db.close()

    asyncio.run(main())


def test_a_posted_call_that_fails_is_logged(file: Watched, caplog: pytest.LogCaptureFixture) -> None:
    def full(db: Database) -> None:
        raise LedgerError("ledger.db: database or disk is full")

    async def act(ledger: AsyncDatabase, db: Database) -> None:
        ledger.post(full)

    run(file, act)
    assert "LedgerError: ledger.db: database or disk is full" in caplog.text


def test_the_end_waits_for_what_is_pending_and_ends_the_thread(file: Watched) -> None:
    async def main() -> list[threading.Thread]:
        db = Database(file, make_spec())
        ledger, before = AsyncDatabase(db), set(threading.enumerate())
        async with locked(file) as waits:
            ledger.post(processes.note, "e", "fault", "first")
            ledger.post(processes.note, "e", "fault", "second")
            await waits.wait()
            closing = asyncio.ensure_future(ledger.close())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not closing.done()
            ours = list(set(threading.enumerate()) - before)
        await closing
        assert notes(db) == ["first", "second"]
        with pytest.raises(RuntimeError):
            await ledger.call(processes.note, "e", "fault", "third")
        db.close()
        return ours

    (thread,) = asyncio.run(main())
    thread.join(10.0)
    assert not thread.is_alive()
