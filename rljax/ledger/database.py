"""Opening a ledger, and the one way to change it: a transaction that is alone.

SQLite in WAL mode. Writers queue at ``BEGIN IMMEDIATE``; a lock that stays busy is retried with backoff up to a
deadline and then raised, so that no write is lost in silence.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Connection, Row, create_engine, event, insert, inspect, select, update
from sqlalchemy.exc import DatabaseError, OperationalError

from rljax.config import Config
from rljax.ledger import schema
from rljax.ledger.notify import Notifier

LOCK_TIMEOUT = 60.0
"""Seconds that a transaction waits for the others before it fails."""


class LedgerError(RuntimeError):
    """The ledger cannot be used: one line with what, where and what to do."""


class StaleWriterError(RuntimeError):
    """The writer has been replaced: a newer learner lives, or the claim has expired. Nothing was written."""


class RunFailedError(RuntimeError):
    """Some process of the run has recorded why the run cannot go on."""


@dataclass(frozen=True)
class RunSpec:
    """What every process of a run must agree on."""

    seed: int
    group_size: int
    batch_groups: int
    alpha: float
    staleness_bound: int
    sync_interval: int
    max_steps: int
    total_epochs: int | None
    claim_timeout: float

    MUTABLE: ClassVar[tuple[str, ...]] = ("max_steps", "total_epochs", "claim_timeout")

    @classmethod
    def of(cls, config: Config) -> RunSpec:
        """Takes the shared part of a config."""
        return cls(
            seed=config.seed,
            group_size=config.group_size,
            batch_groups=config.groups_per_batch,
            alpha=config.async_generation_ratio,
            staleness_bound=config.staleness_bound,
            sync_interval=config.sync_interval,
            max_steps=config.max_steps,
            total_epochs=config.total_epochs,
            claim_timeout=config.rollout.claim_timeout,
        )


class Database:
    """A ledger file. Safe to share between threads; every process opens its own."""

    def __init__(self, path: Path, spec: RunSpec | None, clock: Callable[[], float] = time.time) -> None:
        """Opens or creates the ledger at ``path``; ``spec`` None opens an existing one as it is.

        Raises:
            LedgerError: not a ledger, of another schema version, or of a run with another spec.
        """
        if spec is None and not path.exists():
            raise LedgerError(f"{path}: no ledger here; start a run first, or correct run_dir")
        self.path = path
        self.clock = clock
        self.notifier = Notifier()
        self._engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 5.0, "isolation_level": None})
        event.listen(self._engine, "connect", _configure)
        try:
            self.spec = self._create_or_check(spec)
        except DatabaseError as error:
            raise LedgerError(
                f"{path}: cannot be used as a ledger ({error.orig}); move it away or choose another run_dir"
            ) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction: alone among writers, all or nothing. Wakes local waiters once committed."""
        with self._begin("BEGIN IMMEDIATE") as connection:
            yield connection
        self.notifier.notify()

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot."""
        with self._begin("BEGIN") as connection:
            yield connection

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _begin(self, statement: str) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            _retry_while_locked(lambda: connection.exec_driver_sql(statement))
            try:
                yield connection
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            _retry_while_locked(lambda: connection.exec_driver_sql("COMMIT"))

    def _create_or_check(self, spec: RunSpec | None) -> RunSpec:
        with self._begin("BEGIN IMMEDIATE") as tx:
            names = set(inspect(tx).get_table_names())
            if not names and spec is not None:
                schema.metadata.create_all(tx, checkfirst=False)
                tx.execute(insert(schema.run).values(_first_row(spec)))
                return spec
            if "run" not in names:
                raise LedgerError(f"{self.path}: a database, but not a ledger; choose another run_dir")
            found = tx.execute(select(schema.run.c.schema_version)).scalar_one()
            if found != schema.SCHEMA_VERSION:
                raise LedgerError(
                    f"{self.path}: ledger of schema version {found}, this program reads {schema.SCHEMA_VERSION}; "
                    "finish the run with the program that began it, or choose another run_dir"
                )
            recorded = RunSpec(**json.loads(run_row(tx).spec))
            if spec is None:
                return recorded
            self._check_spec(recorded, spec)
            tx.execute(update(schema.run).values(spec=json.dumps(asdict(spec))))
            return spec

    def _check_spec(self, recorded: RunSpec, wanted: RunSpec) -> None:
        for name, value in asdict(recorded).items():
            if name not in RunSpec.MUTABLE and getattr(wanted, name) != value:
                raise LedgerError(
                    f"{self.path}: this run has {name}={value}, the config says {getattr(wanted, name)}; "
                    "use the run's own value, or another run_dir"
                )


def run_row(tx: Connection) -> Row[Any]:
    """The one row of `schema.run`."""
    return tx.execute(select(schema.run)).one()


def record_event(tx: Connection, at: float, who: str, kind: str, message: str) -> None:
    """Notes a fault, for the audit and the report."""
    tx.execute(insert(schema.events).values(at=at, who=who, kind=kind, message=message[:2000]))


def _first_row(spec: RunSpec) -> dict[str, Any]:
    return {
        "id": 1,
        "schema_version": schema.SCHEMA_VERSION,
        "spec": json.dumps(asdict(spec)),
        "lineage": 0,
        "trained": 0,
        "leasing": False,
        "announced": -1,
        "announced_lineage": -1,
        "claims": 0,
        "pruned": 0,
        "finished": False,
        "failure": None,
    }


def _configure(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _retry_while_locked(action: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    delay = threading.Event()
    for attempt in range(1_000_000):
        try:
            action()
        except OperationalError as error:
            busy = "locked" in str(error.orig) or "busy" in str(error.orig)
            if not busy or time.monotonic() > deadline:
                raise
            delay.wait(min(1.0, 0.01 * 2 ** min(attempt, 6)) * random.uniform(0.5, 1.0))
        else:
            return
