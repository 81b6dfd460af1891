"""Who is alive: heartbeats, goodbyes, and what happens to the claims of the dead."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping

import psutil
from sqlalchemy import Connection, Row, insert, select, update

from rljax.ledger import schema
from rljax.ledger.claims import reopen_claims_of
from rljax.ledger.database import Database, LedgerError, StaleWriterError, record_event, run_row
from rljax.ledger.liveness import split_by_life, still_alive

p = schema.processes.c


def register(db: Database, name: str, role: str) -> str:
    """Says hello; returns the token of this life. Claims of an earlier life of the same name are reopened.

    Raises:
        LedgerError: a process of this name is alive, or one that goes by another spec than this one.
    """
    token = uuid.uuid4().hex
    with db.transaction() as tx:
        found = tx.execute(select(schema.processes).where(p.name == name)).one_or_none()
        if found is not None and still_alive(found, db.clock(), db.spec.claim_timeout):
            who, hint = ("a trainer", "") if role == "trainer" else ("an explorer", ", or set another explorer.name")
            raise LedgerError(
                f"{db.path.parent}: {who} named {name!r} is alive here (pid {found.pid} on {found.host}); "
                f"end it first{hint}"
            )
        db.agree(tx, db.spec)  # others may have opened the ledger, and changed it, since this process did
        values = {
            "role": role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "token": token,
            "heartbeat": db.clock(),
            "alive": True,
            "version": -1,
            "loading": -1,
            "gauges": "{}",
        }
        others = tx.execute(select(p.name).where(p.alive, p.name != name).limit(1)).first()
        if others is None:  # nobody is left of the run that failed: this is a new try
            tx.execute(update(schema.run).values(failure=None))
        if found is None:
            tx.execute(insert(schema.processes).values(name=name, **values))
        else:
            _bury(tx, db, found, "" if not found.alive else "died")
            tx.execute(update(schema.processes).where(p.name == name).values(values))
    return token


def heartbeat(
    db: Database, name: str, token: str, version: int = -1, gauges: Mapping[str, float] | None = None
) -> None:
    """Says that this life goes on, and buries those that have not said so for ``claim_timeout`` seconds.

    Raises:
        StaleWriterError: this life was declared dead or replaced; its claims are gone.
    """
    with db.transaction() as tx:
        now = db.clock()
        values = {"heartbeat": now, "version": version, "gauges": json.dumps(dict(gauges or {}))}
        mine = (p.name == name, p.token == token, p.alive)
        if not tx.execute(update(schema.processes).where(*mine).values(values)).rowcount:
            raise StaleWriterError(f"{name}: declared dead after {db.spec.claim_timeout:g} s without a heartbeat")
        silent = select(schema.processes).where(p.alive, p.heartbeat < now - db.spec.claim_timeout)
        for row in tx.execute(silent).all():
            _bury(tx, db, row, "silent")


@contextlib.contextmanager
def loading(db: Database, name: str, version: int) -> Iterator[None]:
    """Keeps the files of a version while a process reads them; if that went well, it uses this version from then on."""
    mine = update(schema.processes).where(p.name == name, p.alive)
    with db.transaction() as tx:
        tx.execute(mine.values(loading=version))
    ended = {"loading": -1}
    try:
        yield
        ended["version"] = version  # not left to the next heartbeat: until then the files would be nobody's
    finally:
        with db.transaction() as tx:
            tx.execute(mine.values(ended))


def revive(db: Database, name: str, token: str) -> bool:
    """Takes a declaration of death back; false if another life of this name has registered since."""
    with db.transaction() as tx:
        values = {"heartbeat": db.clock(), "alive": True}
        mine = update(schema.processes).where(p.name == name, p.token == token)
        return bool(tx.execute(mine.values(values)).rowcount)


def leave(db: Database, name: str, token: str) -> None:
    """Says goodbye: open claims and validations are handed back."""
    with db.transaction() as tx:
        found = tx.execute(select(schema.processes).where(p.name == name, p.token == token)).one_or_none()
        if found is not None:
            _bury(tx, db, found, "")


def gauges(db: Database, role: str) -> dict[str, dict[str, float]]:
    """What each live process of a role measures of itself, by name."""
    with db.read() as tx:
        return _gauges(tx, role)


def summed_gauges(db: Database, role: str) -> dict[str, float]:
    """`gauges`, added up over the live processes of a role."""
    total: dict[str, float] = {}
    for measured in gauges(db, role).values():
        for name, value in measured.items():
            total[name] = total.get(name, 0.0) + value
    return total


def tokens(db: Database) -> float:
    """`tokens_sampled`, in a transaction of its own."""
    with db.read() as tx:
        return tokens_sampled(tx)


def tokens_sampled(tx: Connection) -> float:
    """Tokens that the live explorers' engines have sampled, as of the last heartbeats; grows while they generate."""
    return sum(measured.get("tokens", 0.0) for measured in _gauges(tx, "explorer").values())


def bury_dead(db: Database) -> list[str]:
    """Buries processes of this host that are gone and all that have been silent too long; returns their names."""
    with db.transaction() as tx:
        _, dead = split_by_life(tx, db.clock(), db.spec.claim_timeout)
        for row in dead:
            _bury(tx, db, row, "died")
        return [row.name for row in dead]


def fail_run(db: Database, who: str, message: str) -> None:
    """Records why the run cannot go on; every process stops on it."""
    with db.transaction() as tx:
        record_event(tx, db.clock(), who, "failure", message)
        if run_row(tx).failure is None:
            tx.execute(update(schema.run).values(failure=message))


def note(db: Database, who: str, kind: str, message: str) -> None:
    """Records a fault that the run survives."""
    with db.transaction() as tx:
        record_event(tx, db.clock(), who, kind, message)


def _gauges(tx: Connection, role: str) -> dict[str, dict[str, float]]:
    rows = tx.execute(select(p.name, p.gauges).where(p.role == role, p.alive))
    return {row.name: json.loads(row.gauges) for row in rows}


def _bury(tx: Connection, db: Database, row: Row, kind: str) -> None:
    tx.execute(update(schema.processes).where(p.name == row.name).values(alive=False, version=-1, loading=-1))
    if row.role == "explorer":
        reopen_claims_of(tx, db.clock(), row.name, kind)
        a = schema.validations.c
        mine = (a.state == "claimed", a.explorer == row.name)
        tx.execute(update(schema.validations).where(*mine).values(state="requested", explorer=None))
