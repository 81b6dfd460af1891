"""Keeps a ledger in PostgreSQL: one schema a run, for processes of several hosts.

Writers queue at an advisory lock of the schema, which ends with their transaction, whatever ends that; readers see a
REPEATABLE READ snapshot. A back end that is killed takes all connections with it, and one that dies during COMMIT
leaves open whether it was one. Each write transaction is therefore signed: it writes a number of its own into its
thread's row of `writers`, and a writer that lost the connection looks for it, once it has the lock, before it does the
work again. ``pg_xact_status`` would not do: a transaction's number that no WAL record has carried to disk is given out
again after a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
import uuid

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

SESSION = {
    "lock_timeout": "5s",  # then the wait for other writers begins anew, up to LOCK_TIMEOUT
    "idle_in_transaction_session_timeout": "30s",  # a host that vanishes does not keep the others from writing
}
CONNECT = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""libpq: a server that has vanished is noticed within seconds. A URL's query may say otherwise."""
PASSING = {"40001", "40P01", "53300", "55P03", "57P01", "57P02", "57P03"}
"""Serialisation failure, deadlock, too many connections, lock timeout, shut-downs and starting up."""
STARTING = ("starting up", "recovery mode", "not yet accepting", "shutting down", "too many clients")
HUNG_UP = ("closed the connection", "has been closed", "reset by peer", "broken pipe", "eof detected")
"""libpq's messages where no SQLSTATE arrives. A server that restarts after a crash drops new connections."""

signatures = MetaData()
writers = Table(
    "writers",
    signatures,
    Column("id", String(100), primary_key=True, comment="one thread of one process"),
    Column("number", BigInteger, nullable=False, comment="of its newest committed transaction"),
)


class PostgresSchema:
    """Implements `rljax.ledger.backend.Backend` by the schema ``name`` of the database at ``url``."""

    def __init__(self, url: URL, name: str) -> None:
        self.url = url.set(drivername="postgresql+psycopg")
        self.name = name
        self._key = int.from_bytes(hashlib.sha256(f"rljax ledger {name}".encode()).digest()[:8], signed=True)
        self._life = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    @property
    def label(self) -> str:
        """Host, database and schema."""
        host = self.url.host or self.url.query.get("host", "local socket")
        port = f":{self.url.port}" if self.url.port else ""
        return f"postgresql://{host}{port}/{self.url.database}, schema {self.name}"

    def engine(self) -> Engine:
        """Returns an engine whose connections leave transactions to us, use the schema and give up on a dead server."""
        given = str(self.url.query.get("options", ""))
        settings = {"search_path": f'"{self.name}"', **SESSION}
        options = " ".join([given, *(f"-c {name}={value}" for name, value in settings.items())]).strip()
        defaults = {name: value for name, value in CONNECT.items() if name not in self.url.query}
        return create_engine(
            self.url,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,
            connect_args={**defaults, "options": options},
            hide_parameters=True,
        )

    def exists(self) -> bool:
        """Returns whether the schema holds a ledger.

        Raises:
            DBAPIError: the server cannot be asked.
        """
        engine = self.engine()
        try:
            with engine.connect() as connection:
                return "run" in self.tables(connection)
        finally:
            engine.dispose()

    def begin_write(self, connection: Connection) -> None:
        """Takes the schema's lock. READ COMMITTED: what is read after it is what the last writer left."""
        connection.exec_driver_sql(f"BEGIN; SELECT pg_advisory_xact_lock({self._key})")

    def unhalted(self) -> contextlib.AbstractContextManager[None]:
        """Implements `Backend.unhalted`: the server ends a transaction that stands still, as `SESSION` says."""
        return contextlib.nullcontext()

    def begin_read(self, connection: Connection) -> None:
        """Opens a snapshot for as long as it takes: it blocks nobody."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        connection.exec_driver_sql(f"{begin}; SET LOCAL idle_in_transaction_session_timeout = 0")

    def tables(self, connection: Connection) -> set[str]:
        """Returns the names of all tables of the schema."""
        query = text("SELECT tablename FROM pg_tables WHERE schemaname = :name")
        return set(connection.execute(query, {"name": self.name}).scalars())

    def prepare(self, connection: Connection) -> None:
        """Creates the schema, and the table of signatures."""
        connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{self.name}"')
        signatures.create_all(connection, checkfirst=False)

    def now(self, connection: Connection) -> float:
        """Returns the time of the server's clock: those of the hosts may differ."""
        return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())::float8").scalar_one())

    def sign(self, connection: Connection) -> int:
        """Writes the next number into this thread's row."""
        number = next(self._numbers)
        mine = {"id": self._writer, "number": number}
        upsert = insert(writers).values(id=bindparam("id"), number=bindparam("number"))
        newest = upsert.on_conflict_do_update(index_elements=["id"], set_={"number": upsert.excluded.number})
        connection.execute(newest, mine)
        return number

    def signature(self, connection: Connection) -> int | None:
        """Returns the number in this thread's row."""
        mine = select(writers.c.number).where(writers.c.id == self._writer)
        return connection.execute(mine).scalar_one_or_none()

    def passes(self, error: Exception, opened: bool) -> bool:
        """Returns whether the connection is lost, the server restarts, or others hold the lock."""
        if not isinstance(error, DBAPIError):
            return False
        state = getattr(error.orig, "sqlstate", None)
        if error.connection_invalidated or state in PASSING or (state or "").startswith("08"):
            return True
        unreached = state is None and isinstance(error, (OperationalError, InterfaceError))
        return unreached and (opened or any(words in str(error.orig).lower() for words in STARTING + HUNG_UP))

    def explain(self, error: Exception, opened: bool) -> str:
        """Returns the server's message, and where to look."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        said = " ".join(str(cause).split())
        return f"{said}; check that the server runs, and the user, database and permissions that ledger names"

    @property
    def _writer(self) -> str:
        return f"{self._life}-{os.getpid()}-{threading.get_ident()}"
