"""Finds out which processes of a run live, whatever their rows still say: one that was killed has not unregistered."""

from __future__ import annotations

import socket

import psutil
from sqlalchemy import Row, select

from rljax.ledger import schema
from rljax.ledger.transaction import Transaction

CLOCK_STEP = 2.0
"""Seconds by which the start of one process may seem to move when the wall clock is corrected."""


def still_alive(row: Row, now: float, claim_timeout: float) -> bool:
    """Returns whether the process of a row of `schema.processes` lives: by pid on this host, by heartbeat elsewhere."""
    if not row.alive:
        return False
    if row.host == socket.gethostname():
        try:
            process = psutil.Process(row.pid)
            reused = process.create_time() > row.started + CLOCK_STEP
            return not reused and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
    return row.heartbeat >= now - claim_timeout


def split_by_life(tx: Transaction, claim_timeout: float) -> tuple[list[Row], list[Row]]:
    """Returns the processes that live, and those that died and are not marked dead yet."""
    living: list[Row] = []
    dead: list[Row] = []
    now, p = tx.now(), schema.processes.c
    for row in tx.execute(select(schema.processes).where(p.alive).order_by(p.name)).all():
        (living if still_alive(row, now, claim_timeout) else dead).append(row)
    return living, dead
