"""Registers processes, records their heartbeats, and reopens the claims of the dead."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping

import psutil
from sqlalchemy import Row, bindparam, insert, select, update

from rljax.ledger import schema
from rljax.ledger.claims import reopen_claims_of
from rljax.ledger.database import LedgerError, StaleWriterError, agree, record_event, run_row, storable
from rljax.ledger.liveness import split_by_life, still_alive
from rljax.ledger.transaction import Transaction, reads, writes

p = schema.processes.c

_GAUGES = select(p.name, p.gauges).where(p.role == bindparam("role"), p.alive)
_SET_LOADING = update(schema.processes).where(p.name == bindparam("process"), p.alive)


class AliveError(LedgerError):
    """A process of this name is alive. One ``elsewhere``, on another machine, is known by its heartbeats alone."""

    def __init__(self, message: str, *, elsewhere: bool) -> None:
        super().__init__(message)
        self.elsewhere = elsewhere


@writes
def register(tx: Transaction, name: str, role: str) -> str:
    """Registers a process; returns the token of this life. Claims of an earlier life of the same name are reopened.

    Raises:
        AliveError: a process of this name is alive.
        LedgerError: there is one whose spec differs from this one's.
    """
    token = uuid.uuid4().hex
    found = tx.execute(select(schema.processes).where(p.name == name)).one_or_none()
    if found is not None and still_alive(found, tx.now(), tx.spec.claim_timeout):
        who, hint = ("a trainer", "") if role == "trainer" else ("an explorer", ", or set another explorer.name")
        raise AliveError(
            f"{tx.db.label}: {who} named {name!r} is alive here (pid {found.pid} on {found.host}); end it first{hint}",
            elsewhere=found.host != socket.gethostname(),
        )
    agree(tx, tx.spec)  # others may have opened the ledger, and changed it, since this process did
    values = {
        "role": role,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "token": token,
        "heartbeat": tx.now(),
        "alive": True,
        "version": -1,
        "loading": -1,
        "gauges": "{}",
    }
    others = tx.execute(select(p.name).where(p.alive, p.name != name).limit(1)).first()
    if others is None:  # no process of the failed run lives: this is a new try
        tx.execute(update(schema.run).values(failure=None))
    if found is None:
        tx.execute(insert(schema.processes).values(name=name, **values))
    else:
        _mark_dead(tx, found, "" if not found.alive else "died")
        tx.execute(update(schema.processes).where(p.name == name).values(values))
    return token


@writes
def heartbeat(
    tx: Transaction, name: str, token: str, version: int = -1, gauges: Mapping[str, float] | None = None
) -> None:
    """Records a heartbeat of this life, and marks dead the processes that have sent none for ``claim_timeout`` seconds.

    Raises:
        StaleWriterError: this life was declared dead or replaced; its claims are gone.
    """
    now = tx.now()
    values = {"heartbeat": now, "version": version, "gauges": json.dumps(dict(gauges or {}))}
    mine = (p.name == name, p.token == token, p.alive)
    if not tx.execute(update(schema.processes).where(*mine).values(values)).rowcount:
        raise StaleWriterError(f"{name}: declared dead after {tx.spec.claim_timeout:g} s without a heartbeat")
    silent = select(schema.processes).where(p.alive, p.heartbeat < now - tx.spec.claim_timeout)
    for row in tx.execute(silent).all():
        _mark_dead(tx, row, "silent")


@writes
def begin_loading(tx: Transaction, name: str, version: int) -> None:
    """Keeps the files of a version until `end_loading`, while a process reads them."""
    tx.execute(_SET_LOADING, {"process": name, "loading": version})


@writes
def end_loading(tx: Transaction, name: str, loaded: int | None) -> None:
    """Records that a process has read them, and uses version ``loaded`` from now on; None where it failed."""
    ended = {"loading": -1}
    if loaded is not None:
        ended["version"] = loaded  # not left to the next heartbeat: until then no process would hold the files
    tx.execute(_SET_LOADING, {"process": name, **ended})


@writes
def revive(tx: Transaction, name: str, token: str) -> bool:
    """Takes back that a process was marked dead; false if another life of this name has registered since."""
    values = {"heartbeat": tx.now(), "alive": True}
    mine = update(schema.processes).where(p.name == name, p.token == token)
    return bool(tx.execute(mine.values(values)).rowcount)


def check_life(tx: Transaction, token: str) -> None:
    """Checks that no other process has registered under the name that ``token`` was given for.

    Raises:
        StaleWriterError: another process has.
    """
    if not _lives(tx, token):
        raise StaleWriterError("another process of the same name has taken over")


@reads
def is_replaced(tx: Transaction, token: str) -> bool:
    """Returns whether another process has registered under the name that ``token`` was given for."""
    return not _lives(tx, token)


def _lives(tx: Transaction, token: str) -> bool:
    return tx.execute(select(p.name).where(p.token == token)).first() is not None


@writes
def leave(tx: Transaction, name: str, token: str) -> None:
    """Unregisters a process: open claims and validations are handed back."""
    found = tx.execute(select(schema.processes).where(p.name == name, p.token == token)).one_or_none()
    if found is not None:
        _mark_dead(tx, found, "")


def _gauges(tx: Transaction, role: str) -> dict[str, dict[str, float]]:
    """Returns the gauges of each live process of a role, by name."""
    return {row.name: json.loads(row.gauges) for row in tx.execute(_GAUGES, {"role": role})}


gauges = reads(_gauges)


def sum_of_gauges(tx: Transaction, role: str) -> dict[str, float]:
    """Returns the gauges summed over the live processes of a role."""
    total: dict[str, float] = {}
    for measured in _gauges(tx, role).values():
        for name, value in measured.items():
            total[name] = total.get(name, 0.0) + value
    return total


summed_gauges = reads(sum_of_gauges)


def tokens_sampled(tx: Transaction) -> float:
    """Counts the tokens sampled by live explorers' engines, as of the last heartbeats; grows while they generate."""
    return sum(measured.get("tokens", 0.0) for measured in _gauges(tx, "explorer").values())


tokens = reads(tokens_sampled)


@writes
def mark_dead_processes(tx: Transaction) -> list[str]:
    """Marks dead the processes of this host that are gone and all that are silent too long; returns their names."""
    _, dead = split_by_life(tx, tx.spec.claim_timeout)
    for row in dead:
        _mark_dead(tx, row, "died")
    return [row.name for row in dead]


def record_failure(tx: Transaction, who: str, message: str) -> None:
    """Records why the run cannot go on; every process stops on it."""
    record_event(tx, who, "failure", message)
    if run_row(tx).failure is None:
        tx.execute(update(schema.run).values(failure=storable(message)))


fail_run = writes(record_failure)


@writes
def note(tx: Transaction, who: str, kind: str, message: str) -> None:
    """Records a fault that the run survives."""
    record_event(tx, who, kind, message)


def _mark_dead(tx: Transaction, row: Row, kind: str) -> None:
    tx.execute(update(schema.processes).where(p.name == row.name).values(alive=False, version=-1, loading=-1))
    if row.role == "explorer":
        reopen_claims_of(tx, row.name, kind)
        a = schema.validations.c
        mine = (a.state == "claimed", a.explorer == row.name)
        tx.execute(update(schema.validations).where(*mine).values(state="requested", explorer=None))
