"""Protocol of a ledger's database: a SQLite file of the run directory, or a schema of a PostgreSQL database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, make_url

from rljax.config.schema import Config
from rljax.ledger.postgres import PostgresSchema
from rljax.ledger.sqlite import SqliteFile


class Backend(Protocol):
    """Database operations that differ by kind. Connections come from `engine` in autocommit mode: `begin_write` and
    `begin_read` open a transaction on one, ``COMMIT`` ends it.
    """

    @property
    def label(self) -> str:
        """The name in messages; holds no password."""

    def engine(self) -> Engine:
        """Returns the SQLAlchemy engine, whose connections are made on demand."""

    def exists(self) -> bool:
        """Returns whether there is a ledger."""

    def begin_write(self, connection: Connection) -> None:
        """Waits until no other write transaction is open, then opens one."""

    def unhalted(self) -> AbstractContextManager[Any]:
        """Returns a context in which no failpoint halts this process, where writers would wait for it without end."""

    def begin_read(self, connection: Connection) -> None:
        """Opens a transaction that reads one snapshot."""

    def tables(self, connection: Connection) -> set[str]:
        """Returns the names of the tables that are there."""

    def prepare(self, connection: Connection) -> None:
        """Creates what the tables of `rljax.ledger.schema` need."""

    def now(self, connection: Connection) -> float:
        """Returns seconds since 1970, by a clock that all processes of the run share."""

    def sign(self, connection: Connection) -> int | None:
        """Writes a signature into the open transaction, which proves later that it was committed, and returns it; None
        where COMMIT always answers.
        """

    def signature(self, connection: Connection) -> int | None:
        """Returns the signature of this thread's newest committed transaction."""

    def passes(self, error: Exception, opened: bool) -> bool:
        """Returns whether a retry may succeed; ``opened``: this ledger has been reached before."""

    def explain(self, error: Exception, opened: bool) -> str:
        """Returns what is wrong and what to do, in one line; ``opened`` as of `passes`."""


def backend_of(config: Config, run_dir: Path) -> Backend:
    """Returns the backend that ``config.ledger`` names for the run in ``run_dir``."""
    return backend_at(config.ledger, config.resolved_ledger_schema, run_dir)


def backend_at(ledger: str | None, schema: str, run_dir: Path, read_only: bool = False) -> Backend:
    """Returns the backend of a run by the values of its keys; ``read_only`` for who only looks."""
    if ledger is None:
        return SqliteFile(run_dir / "ledger.db", read_only)
    url = make_url(ledger)
    if url.get_backend_name() == "sqlite":
        return SqliteFile(Path(url.database or ""), read_only)
    return PostgresSchema(url, schema)
