"""Where a ledger is kept: a SQLite file of the run directory, or a schema of a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, make_url

from rljax.config.schema import Config
from rljax.ledger.postgres import PostgresSchema
from rljax.ledger.sqlite import SqliteFile


class Backend(Protocol):
    """What differs between databases. Connections come from `engine` in autocommit mode: `begin_write` and `begin_read`
    open a transaction on one, ``COMMIT`` ends it.
    """

    @property
    def label(self) -> str:
        """The name in messages; holds no password."""

    def engine(self) -> Engine:
        """Connections to it, made on demand."""

    def exists(self) -> bool:
        """Whether there is a ledger."""

    def begin_write(self, connection: Connection) -> None:
        """Waits until no other write transaction is open, then opens one."""

    def begin_read(self, connection: Connection) -> None:
        """Opens a transaction that sees one moment."""

    def tables(self, connection: Connection) -> set[str]:
        """Names of the tables that are there."""

    def prepare(self, connection: Connection) -> None:
        """Makes what the tables of `rljax.ledger.schema` need."""

    def now(self, connection: Connection) -> float:
        """Seconds since 1970, by a clock that all processes of the run share."""

    def sign(self, connection: Connection) -> int | None:
        """Leaves in the open transaction what proves later that it was committed; None where COMMIT always answers."""

    def signature(self, connection: Connection) -> int | None:
        """What this thread's newest committed transaction was signed with."""

    def passes(self, error: Exception, opened: bool) -> bool:
        """Whether another try may go well; ``opened``: this ledger has been reached before."""

    def explain(self, error: Exception, opened: bool) -> str:
        """What is wrong and what to do, in one line; ``opened`` as of `passes`."""


def backend_of(config: Config, run_dir: Path) -> Backend:
    """The place that ``config.ledger`` names for the run in ``run_dir``."""
    if config.ledger is None:
        return SqliteFile(run_dir / "ledger.db")
    url = make_url(config.ledger)
    if url.get_backend_name() == "sqlite":
        return SqliteFile(Path(url.database or ""))
    return PostgresSchema(url, config.resolved_ledger_schema)
