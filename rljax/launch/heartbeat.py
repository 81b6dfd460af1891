"""Sends the heartbeats of this process to the ledger, from a thread that no compilation can hold up."""

from __future__ import annotations

import logging
import threading

from rljax.ledger import processes
from rljax.ledger.database import Database, LedgerError, StaleWriterError

log = logging.getLogger(__name__)

SECONDS = 1.0


class Heartbeat:
    """Registers a process and beats until it is closed."""

    def __init__(self, db: Database, name: str, role: str) -> None:
        """Registers a life of that name, which `token` stands for; raises LedgerError if another process lives it."""
        self._db = db
        self._name = name
        self.token = processes.register(db, name, role)
        self._role = role
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat of {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the heartbeats and unregisters the process."""
        self._done.set()
        self._thread.join(timeout=10 * SECONDS)
        processes.leave(self._db, self._name, self.token)

    def _beat(self) -> None:
        while not self._done.wait(SECONDS):
            try:
                processes.heartbeat(self._db, self._name, self.token)
            except StaleWriterError as error:
                # After a suspension: it may go on unless its name is taken. Its writes carry a lineage anyway.
                if not processes.revive(self._db, self._name, self.token):
                    log.warning("%s: %s, and replaced", self._name, error)
                    return
            except LedgerError as error:
                log.warning("%s: heartbeat missed: %s", self._name, error)
