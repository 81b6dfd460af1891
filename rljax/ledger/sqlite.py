"""Keeps a ledger in a SQLite file: WAL mode, writers queue at ``BEGIN IMMEDIATE``.

An open connection would go on in a file that was removed, and miss one that took its place: each transaction
checks whether its file still is the one of that name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError

from sidecar.failpoints import unhalted

BUSY_TIMEOUT = 5.0
"""Seconds that SQLite itself waits for a lock before it says so."""


@dataclass(frozen=True)
class SqliteFile:
    """Implements `rljax.ledger.backend.Backend` by a file, for processes of one host; with ``read_only`` nothing is
    written, neither to it nor beside it.
    """

    path: Path
    read_only: bool = False

    @property
    def label(self) -> str:
        """Path of the file."""
        return str(self.path)

    def engine(self) -> Engine:
        """Returns an engine whose connections leave transactions to us, to a file that is made now or never, for its
        owner alone: a version that travels by ``nccl`` is announced there with its key.
        """
        if self.read_only:
            # Without a log nobody has the file open; SQLite would make one, unless it may take the file as it is.
            open_elsewhere = Path(f"{self.path}-wal").exists()
            return self._connecting(mode="ro", **{"readonly_shm" if open_elsewhere else "immutable": "1"})
        with contextlib.suppress(OSError):  # SQLite says of the same file what is wrong
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            for end in ("", "-wal", "-shm"):
                _make_private(Path(f"{self.path}{end}"))
        return self._connecting(mode="rw")

    def _connecting(self, **query: str) -> Engine:
        uri = URL.create("sqlite", database=f"file:{quote(str(self.path.absolute()))}", query=query | {"uri": "true"})
        engine = create_engine(uri, connect_args={"timeout": BUSY_TIMEOUT, "isolation_level": None})
        event.listen(engine, "connect", self._configure)
        return engine

    def exists(self) -> bool:
        """Returns whether the file is there."""
        return self.path.exists()

    def begin_write(self, connection: Connection) -> None:
        """Takes the file's write lock."""
        self._check_place(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def unhalted(self) -> contextlib.AbstractContextManager[Any]:
        """Implements `Backend.unhalted`: the lock is of a process, however long it stands still."""
        return unhalted()

    def begin_read(self, connection: Connection) -> None:
        """Opens a snapshot: WAL."""
        self._check_place(connection)
        connection.exec_driver_sql("BEGIN")

    def tables(self, connection: Connection) -> set[str]:
        """Returns the names of all tables of the file."""
        return set(inspect(connection).get_table_names())

    def prepare(self, connection: Connection) -> None:
        """Does nothing: the file is there."""

    def now(self, connection: Connection) -> float:
        """Returns the time of the host's clock: all processes are on it."""
        return time.time()

    def sign(self, connection: Connection) -> None:
        """Returns None: a COMMIT that raises was none, so nothing needs to be signed."""

    def signature(self, connection: Connection) -> None:
        """Returns None: no transaction is signed."""

    def passes(self, error: Exception, opened: bool) -> bool:
        """Returns whether another process holds the lock."""
        cause = error.orig if isinstance(error, DBAPIError) else error  # str(error) also has what was to be written
        return isinstance(cause, sqlite3.OperationalError) and any(word in str(cause) for word in ("locked", "busy"))

    def explain(self, error: Exception, opened: bool) -> str:
        """Returns SQLite's message, and where to look."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if opened and not self.path.exists():
            return "it is gone, with all that the run knew: removed or renamed while the run was using it; start anew"
        if isinstance(cause, sqlite3.OperationalError):
            return f"{cause}; check the disk's space and permissions, and who else holds the file"
        if "malformed" in str(cause):
            return f"the file is damaged ({cause}); put a copy of it back, or choose another run_dir"
        return f"cannot be used as a ledger ({cause}); move it away or choose another run_dir"

    def _configure(self, connection: Any, record: Any) -> None:
        if not self.read_only:
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.close()
        record.info["file"] = self._file()

    def _check_place(self, connection: Connection) -> None:
        if connection.info["file"] != self._file():
            raise sqlite3.OperationalError("another file has taken the place of the one that the run was using")

    def _file(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def _make_private(path: Path) -> None:
    """Takes a file of ours, if it is there, from all others: an earlier rljax left it to the umask."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o077:
            path.chmod(0o600)
