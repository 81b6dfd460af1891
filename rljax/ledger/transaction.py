"""Defines transactions, and decorators that turn a function of one into a function of the ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, CursorResult, Executable

from rljax.ledger.run_spec import RunSpec

P = ParamSpec("P")
T = TypeVar("T")


class Ledger(Protocol):
    """Runs transactions; see `rljax.ledger.database.Database`.

    Attributes:
        label: the name in messages; holds no password.
        spec: settings that the processes of the run share.
        now: seconds of the clock that the processes of all hosts share, on a connection.
    """

    label: str
    spec: RunSpec
    now: Callable[[Connection], float]

    def write(self, body: Callable[[Transaction], T]) -> T:
        """Runs ``body`` in a transaction that is alone among writers."""

    def read(self, body: Callable[[Transaction], T]) -> T:
        """Runs ``body`` on a consistent snapshot."""


class Transaction:
    """One try of a transaction. There may be another, from the start: change nothing but the ledger in it."""

    def __init__(self, db: Ledger, connection: Connection) -> None:
        self.db = db
        self.connection = connection
        self.changed = False

    @property
    def spec(self) -> RunSpec:
        """Settings that the processes of the run share."""
        return self.db.spec

    def now(self) -> float:
        """Returns seconds of the ledger's clock, which the processes of all hosts share."""
        return self.db.now(self.connection)

    def execute(
        self, statement: Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[Any]:
        """Runs one statement."""
        self.changed |= bool(getattr(statement, "is_dml", False))
        return self.connection.execute(statement, parameters)


def writes(function: Callable[Concatenate[Transaction, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """Turns a function of a transaction into one of the ledger, which runs it by `Ledger.write`."""

    @functools.wraps(function)
    def run(db: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return db.write(lambda tx: function(tx, *args, **kwargs))

    return run


def reads(function: Callable[Concatenate[Transaction, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """Turns a function of a transaction into one of the ledger, which runs it by `Ledger.read`."""

    @functools.wraps(function)
    def run(db: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return db.read(lambda tx: function(tx, *args, **kwargs))

    return run
