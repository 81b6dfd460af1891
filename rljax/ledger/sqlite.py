"""A ledger in a SQLite file: WAL mode, writers queue at ``BEGIN IMMEDIATE``."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError, OperationalError

BUSY_TIMEOUT = 5.0
"""Seconds that SQLite itself waits for a lock before it says so."""


@dataclass(frozen=True)
class SqliteFile:
    """A `rljax.ledger.backend.Backend`, for processes of one host."""

    path: Path

    @property
    def label(self) -> str:
        """The file."""
        return str(self.path)

    def engine(self) -> Engine:
        """Connections that leave transactions to us."""
        connect_args = {"timeout": BUSY_TIMEOUT, "isolation_level": None}
        engine = create_engine(f"sqlite:///{self.path}", connect_args=connect_args)
        event.listen(engine, "do_connect", self._create)
        event.listen(engine, "connect", _configure)
        return engine

    def _create(self, *_: Any) -> None:
        """Makes the file for its owner alone: a version that travels by ``nccl`` is announced there with its key."""
        with contextlib.suppress(OSError):  # what is wrong, SQLite says when it opens the file
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))

    def exists(self) -> bool:
        """Whether the file is there."""
        return self.path.exists()

    def begin_write(self, connection: Connection) -> None:
        """Takes the file's write lock."""
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def begin_read(self, connection: Connection) -> None:
        """Reads a snapshot: WAL."""
        connection.exec_driver_sql("BEGIN")

    def tables(self, connection: Connection) -> set[str]:
        """All tables of the file."""
        return set(inspect(connection).get_table_names())

    def prepare(self, connection: Connection) -> None:
        """Nothing: the file is there."""

    def now(self, connection: Connection) -> float:
        """The host's clock: all processes are on it."""
        return time.time()

    def sign(self, connection: Connection) -> None:
        """Nothing: a COMMIT that raises was none."""

    def signature(self, connection: Connection) -> None:
        """None: nothing is signed."""

    def passes(self, error: Exception, opened: bool) -> bool:
        """Another process holds the lock."""
        known = isinstance(error, (OperationalError, sqlite3.OperationalError))
        return known and any(word in str(error) for word in ("locked", "busy"))

    def explain(self, error: Exception) -> str:
        """SQLite's own words, and where to look."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, sqlite3.OperationalError):
            return f"{cause}; check the disk's space and permissions, and who else holds the file"
        return f"cannot be used as a ledger ({cause}); move it away or choose another run_dir"


def _configure(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
