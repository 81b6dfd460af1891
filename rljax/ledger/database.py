"""Opening a ledger, and the one way to change it: a transaction that is alone.

SQLite in WAL mode. Writers queue at ``BEGIN IMMEDIATE``; a lock that stays busy is retried with backoff up to a
deadline and then raised, so that no write is lost in silence.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, Row, create_engine, event, insert, inspect, select, update
from sqlalchemy.exc import DatabaseError, OperationalError

from rljax.config import Config
from rljax.ledger import schema
from rljax.ledger.liveness import split_by_life
from rljax.ledger.notify import Notifier

LOCK_TIMEOUT = 60.0
"""Seconds that a transaction waits for the others before it fails."""

T = TypeVar("T")


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
    KEYS: ClassVar[dict[str, str]] = {
        "batch_groups": "rollout_batch_size / group_size",
        "alpha": "async_generation_ratio",
        "staleness_bound": "max_staleness",
        "claim_timeout": "rollout.claim_timeout",
    }

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
            LedgerError: not a ledger, of another schema version, or of a run with another spec; see `agree`.
        """
        if spec is None and not path.exists():
            raise LedgerError(f"{path}: no ledger here; start a run first, or correct run_dir")
        self.path = path
        self.clock = clock
        self.notifier = Notifier()
        self._engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 5.0, "isolation_level": None})
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "after_execute", _note_change)
        try:
            self.spec = self._create_or_check(spec)
        except DatabaseError as error:
            raise LedgerError(
                f"{path}: cannot be used as a ledger ({error.orig}); move it away or choose another run_dir"
            ) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction: alone among writers, all or nothing. Wakes local waiters if it changed anything.

        Raises:
            LedgerError: the disk is full or refuses the write, or others kept the file locked for `LOCK_TIMEOUT`.
        """
        with self._begin("BEGIN IMMEDIATE") as connection:
            connection.info["changed"] = False
            yield connection
            changed = connection.info["changed"]
        if changed:
            self.notifier.notify()

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot."""
        with self._begin("BEGIN") as connection:
            yield connection

    def agree(self, tx: Connection, spec: RunSpec) -> None:
        """Records ``spec`` as the run's, unless somebody goes by another.

        Raises:
            LedgerError: somebody does: a process that lives, or, where `RunSpec.MUTABLE` does not name the key, the
                groups of earlier ones.
        """
        row = run_row(tx)
        recorded = RunSpec(**json.loads(row.spec))
        living, _ = split_by_life(tx, self.clock(), recorded.claim_timeout)
        for name, value in asdict(recorded).items():
            wanted = getattr(spec, name)
            if wanted == value:
                continue
            differs = f"{self.path}: this run has {RunSpec.KEYS.get(name, name)}={value}, the config says {wanted}"
            if name not in RunSpec.MUTABLE:
                if row.claims or row.lineage or living:
                    raise LedgerError(f"{differs}; use the run's own value, or another run_dir")
            elif living:
                who = f"{living[0].name} is alive (pid {living[0].pid} on {living[0].host})"
                raise LedgerError(f"{differs}, and {who}; end it first, or use the run's own value")
        tx.execute(update(schema.run).values(spec=json.dumps(asdict(spec))))

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _begin(self, statement: str) -> Iterator[Connection]:
        try:
            # Closing rolls back what is not committed, also where SQLite has already done so (a full disk).
            with retry_while_locked(self._engine.connect) as connection:
                retry_while_locked(lambda: connection.exec_driver_sql(statement))
                yield connection
                retry_while_locked(lambda: connection.exec_driver_sql("COMMIT"))
        except (OperationalError, sqlite3.OperationalError) as error:
            cause = getattr(error, "orig", error)
            raise LedgerError(
                f"{self.path}: {cause}; check the disk's space and permissions, and who else holds the file"
            ) from error

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
            if spec is None:
                return RunSpec(**json.loads(run_row(tx).spec))
            self.agree(tx, spec)
            return spec


def run_row(tx: Connection) -> Row[Any]:
    """The one row of `schema.run`."""
    return tx.execute(select(schema.run)).one()


def is_finished(db: Database, max_steps: int) -> bool:
    """Whether the learner has ended the run, and neither ``max_steps`` nor more epochs ask for more of it."""
    with db.read() as tx:
        return is_over(run_row(tx), max_steps, db.spec.total_epochs)


def is_over(row: Row[Any], max_steps: int, total_epochs: int | None) -> bool:
    """`is_finished` of the run's row."""
    data_ended = row.ended_epochs is not None and row.ended_epochs == total_epochs
    return bool(row.finished) and (row.trained >= max_steps or data_ended)


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
        "ended_epochs": None,
        "failure": None,
    }


def _note_change(connection: Connection, statement: Any, _many: Any, _one: Any, _options: Any, _result: Any) -> None:
    if getattr(statement, "is_dml", False):
        connection.info["changed"] = True


def _configure(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def retry_while_locked(
    action: Callable[[], T],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Runs ``action`` until the file is free, with jittered backoff of at most a second, for `LOCK_TIMEOUT` seconds.

    Raises:
        OperationalError: the file stayed locked, or something else is wrong with it.
    """
    deadline = now() + LOCK_TIMEOUT
    delay = 0.01
    while True:
        try:
            return action()
        except (OperationalError, sqlite3.OperationalError) as error:
            if not any(word in str(error) for word in ("locked", "busy")) or now() > deadline:
                raise
        sleep(delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, 1.0)
