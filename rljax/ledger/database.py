"""Opens a ledger, and runs its transactions: the one way to read and change it.

A write transaction is alone, all or nothing. What disturbs it (a lock that stays busy, a connection that is lost) has
the whole of it made again, with backoff, up to a deadline at which it is raised: no write is lost in silence, none is
made twice.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError

from rljax.config.fields import ConfigError
from rljax.ledger import schema
from rljax.ledger.backend import Backend
from rljax.ledger.liveness import split_by_life
from rljax.ledger.notify import POLL, Notifier
from rljax.ledger.retry import retry
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.transaction import Transaction, reads

T = TypeVar("T")

_RUN = select(schema.run)


class LedgerError(RuntimeError):
    """The ledger cannot be used: one line with what, where and what to do."""


class OtherSettingsError(LedgerError, ConfigError):
    """The config says of a setting that all processes of a run share something else than the run does."""


class StaleWriterError(RuntimeError):
    """The writer has been replaced: a newer learner lives, or the claim has expired. Nothing was written."""


class RunFailedError(RuntimeError):
    """Some process of the run has recorded why the run cannot go on."""


class Database:
    """Connects to a ledger. Safe to share between threads; every process opens its own."""

    def __init__(
        self, backend: Backend, spec: RunSpec | None, clock: Callable[[], float] | None = None, poll: float = POLL
    ) -> None:
        """Opens or creates the ledger; ``spec`` None opens an existing one as it is.

        Args:
            backend: where it is kept.
            spec: the settings of this process.
            clock: returns seconds; None for the backend's own. A run on virtual time passes another.
            poll: seconds after which who waits for a change looks for one by another process.

        Raises:
            LedgerError: not a ledger, of another schema version, or of a run with another spec; see `agree`.
        """
        self.label = backend.label
        self.clock = clock or time.time
        self.now = backend.now if clock is None else lambda _: self.clock()
        self.notifier = Notifier(poll)
        self._backend = backend
        self._opened = False
        if spec is None and not ledger_exists(backend):
            raise LedgerError(f"{self.label}: no ledger here; start a run first, or correct run_dir")
        self._engine = backend.engine()
        self.spec = self._guarded(lambda: self._create_or_check(spec))
        self._opened = True

    def write(self, body: Callable[[Transaction], T]) -> T:
        """Runs ``body`` in a transaction that is alone among writers, once in effect however often it is tried. Wakes
        local waiters if it changed anything.

        Raises:
            LedgerError: the disk is full or refuses the write, or the ledger was out of reach for `LOCK_TIMEOUT`.
        """
        unsure: dict[int, T] = {}  # results of tries whose COMMIT was the last that was heard of them, by signature
        changed = False

        def once() -> T:
            nonlocal changed
            # Closing a connection rolls back what is not committed.
            with self._backend.unhalted(), self._engine.connect() as connection:
                self._backend.begin_write(connection)
                if unsure and (signature := self._backend.signature(connection)) in unsure:
                    return unsure[signature]
                tx = Transaction(self, connection)
                result = body(tx)
                changed = tx.changed
                if changed and (signature := self._backend.sign(connection)) is not None:
                    unsure[signature] = result
                connection.exec_driver_sql("COMMIT")
                return result

        result = self._guarded(once)
        if changed:
            self.notifier.notify()
        return result

    def read(self, body: Callable[[Transaction], T]) -> T:
        """Runs ``body`` on a consistent snapshot.

        Raises:
            LedgerError: the ledger was out of reach for `LOCK_TIMEOUT`.
        """

        def once() -> T:
            with self._engine.connect() as connection:
                self._backend.begin_read(connection)
                result = body(Transaction(self, connection))
                connection.exec_driver_sql("COMMIT")
                return result

        return self._guarded(once)

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def _guarded(self, action: Callable[[], T]) -> T:
        return _guarded(self._backend, action, self._opened)

    def _create_or_check(self, spec: RunSpec | None) -> RunSpec:
        if spec is None:
            return self.read(self._recorded)
        return self.write(lambda tx: self._create(tx, spec))

    def _create(self, tx: Transaction, spec: RunSpec) -> RunSpec:
        if self._backend.tables(tx.connection):
            self._recorded(tx)
            agree(tx, spec)
        else:
            self._backend.prepare(tx.connection)
            schema.metadata.create_all(tx.connection, checkfirst=False)
            tx.execute(insert(schema.run).values(_first_row(spec)))
        return spec

    def _recorded(self, tx: Transaction) -> RunSpec:
        if "run" not in self._backend.tables(tx.connection):
            raise LedgerError(f"{self.label}: a database, but not a ledger; choose another run_dir")
        found = tx.execute(select(schema.run.c.schema_version)).scalar_one()
        if found != schema.SCHEMA_VERSION:
            raise LedgerError(
                f"{self.label}: ledger of schema version {found}, this program reads {schema.SCHEMA_VERSION}; "
                "finish the run with the program that began it, or choose another run_dir"
            )
        return RunSpec(**json.loads(run_row(tx).spec))


def ledger_exists(backend: Backend) -> bool:
    """Returns whether there is a ledger in this place.

    Raises:
        LedgerError: its server cannot be asked.
    """
    return _guarded(backend, backend.exists, False)


def _guarded(backend: Backend, action: Callable[[], T], opened: bool) -> T:
    try:
        return retry(action, lambda error: backend.passes(error, opened))
    except (DBAPIError, sqlite3.Error) as error:
        if opened and not _is_broken(error):
            raise
        raise LedgerError(f"{backend.label}: {backend.explain(error, opened)}") from error


def _is_broken(error: DBAPIError | sqlite3.Error) -> bool:
    """Returns whether the database, not our statement, is broken. SQLite's plain DatabaseError: a damaged file."""
    broken = (OperationalError, InterfaceError, sqlite3.OperationalError)
    return isinstance(error, broken) or type(error) in (DatabaseError, sqlite3.DatabaseError)


def agree(tx: Transaction, spec: RunSpec) -> None:
    """Records ``spec`` as the run's, unless another process goes by a different one.

    Raises:
        OtherSettingsError: another does: a process that lives, or, where `RunSpec.MUTABLE` does not name the key, the
            groups of earlier ones.
    """
    row = run_row(tx)
    recorded = RunSpec(**json.loads(row.spec))
    living, _ = split_by_life(tx, recorded.claim_timeout)
    for name, value in asdict(recorded).items():
        wanted = getattr(spec, name)
        if wanted == value:
            continue
        differs = f"{tx.db.label}: this run has {RunSpec.KEYS.get(name, name)}={value}, the config says {wanted}"
        if name not in RunSpec.MUTABLE:
            if row.claims or row.lineage or living:
                raise OtherSettingsError(f"{differs}; use the run's own value, or another run_dir")
        elif living:
            who = f"{living[0].name} is alive (pid {living[0].pid} on {living[0].host})"
            raise OtherSettingsError(f"{differs}, and {who}; end it first, or use the run's own value")
    tx.execute(update(schema.run).values(spec=json.dumps(asdict(spec))))


def run_row(tx: Transaction) -> Row[Any]:
    """Returns the one row of `schema.run`."""
    return tx.execute(_RUN).one()


@reads
def is_finished(tx: Transaction, max_steps: int) -> bool:
    """Returns whether the learner has ended the run, and neither ``max_steps`` nor more epochs ask for more of it."""
    return is_over(run_row(tx), max_steps, tx.spec.total_epochs)


def is_over(row: Row[Any], max_steps: int, total_epochs: int | None) -> bool:
    """Returns `is_finished` for the run's row."""
    data_ended = row.ended_epochs is not None and row.ended_epochs == total_epochs
    return bool(row.finished) and (row.trained >= max_steps or data_ended)


def record_event(tx: Transaction, who: str, kind: str, message: str) -> None:
    """Records a fault, for the audit and the report."""
    values = {"at": tx.now(), "who": who, "kind": kind[:60], "message": storable(message[:2000])}
    tx.execute(insert(schema.events).values(values))


def storable(text: str) -> str:
    """Returns ``text`` without what PostgreSQL cannot store: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def _first_row(spec: RunSpec) -> dict[str, Any]:
    return {
        "id": 1,
        "schema_version": schema.SCHEMA_VERSION,
        "spec": json.dumps(asdict(spec)),
        "model": None,
        "validation": None,
        "demonstrations": None,
        "lineage": 0,
        "trained": 0,
        "leasing": False,
        "announced": -1,
        "announced_lineage": -1,
        "claims": 0,
        "pruned": 0,
        "finished": False,
        "ended_epochs": None,
        "failure": None,
    }
