"""How an explorer ends: the time that it has for it, and what the ledger is told."""

from __future__ import annotations

import logging

from rljax.ledger import processes
from rljax.ledger.database import Database

log = logging.getLogger(__name__)

SHUTDOWN = 180.0
"""Seconds that an explorer may take to hand its claims back: longer than an engine has to end a compilation."""


def record_end(db: Database, name: str, message: str, needed: bool, *, fatal: bool = False) -> None:
    """An explorer has ended by a fault: the run fails where that is ``fatal``, or it was needed and the last one."""
    processes.mark_dead(db)
    if fatal or (needed and not set(processes.gauges(db, "explorer")) - {name}):
        processes.fail_run(db, name, message)
    else:
        processes.note(db, name, "explorer", message)
        log.warning("%s; the run goes on without it", message)
