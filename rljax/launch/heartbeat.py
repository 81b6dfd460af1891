"""Sends the heartbeats of the trainer to the ledger, from a thread that no compilation can hold up."""

from __future__ import annotations

import logging
import threading
import time

from rljax.ledger import processes
from rljax.ledger.database import Database, LedgerError, StaleWriterError

log = logging.getLogger(__name__)

NAME = "trainer"
SECONDS = 1.0


def _register(db: Database, patience: float) -> str:
    deadline = time.monotonic() + patience
    while True:
        try:
            return processes.register(db, NAME, role="trainer")
        except processes.AliveError as error:
            if not error.elsewhere or time.monotonic() > deadline:
                raise
        time.sleep(SECONDS)


class TrainerHeartbeat:
    """Registers the trainer and beats until it is closed."""

    def __init__(self, db: Database, patience: float = 0.0) -> None:
        """Registers a life of the trainer, which `token` stands for.

        Args:
            db: ledger.
            patience: seconds in which a former trainer on another machine, which may be dead, is waited for.

        Raises:
            LedgerError: another process lives it.
        """
        self._db = db
        self.token = _register(db, patience)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat of the {NAME}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the heartbeats and unregisters the process."""
        self._done.set()
        self._thread.join(timeout=10 * SECONDS)
        processes.leave(self._db, NAME, self.token)

    def _beat(self) -> None:
        while not self._done.wait(SECONDS):
            try:
                if not self._lives_on():
                    return
            except LedgerError as error:
                log.warning("%s: heartbeat missed: %s", NAME, error)

    def _lives_on(self) -> bool:
        try:
            processes.heartbeat(self._db, NAME, self.token)
        except StaleWriterError as error:
            # After a suspension: it may go on unless somebody took its place. Its writes carry a lineage anyway.
            if not processes.revive(self._db, NAME, self.token):
                log.warning("%s: %s, and replaced", NAME, error)
                return False
        return True
