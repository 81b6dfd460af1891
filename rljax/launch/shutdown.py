"""Ends an explorer: its time limit, and the record of its failure in the ledger."""

from __future__ import annotations

import logging
import threading

from rljax.ledger import processes
from rljax.ledger.database import Database, LedgerError

log = logging.getLogger(__name__)

SHUTDOWN = 180.0
"""Seconds that an explorer may take to hand its claims back: longer than an engine has to end a compilation."""


class EndRecord:
    """Records an explorer's failure in the ledger: at once, or as soon as the ledger can be written."""

    def __init__(self, db: Database, name: str, needed: bool) -> None:
        """Takes the explorer's name; ``needed`` says that the run fails with this explorer where no other lives."""
        self._db = db
        self._name = name
        self._needed = needed
        self._lock = threading.Lock()
        self._unrecorded: tuple[str, bool] | None = None

    def ended(self, message: str, *, fatal: bool = False) -> None:
        """Records the explorer's end: the run fails where that is ``fatal``, or where it was needed and the last one.

        Raises nothing: what the ledger could not record, `record_late` writes.
        """
        try:
            self._record(message, fatal)
        except LedgerError as error:
            log.warning("%s; the ledger could not be told: %s", message, error)
            with self._lock:
                self._unrecorded = message, fatal

    def record_late(self) -> None:
        """Records a failure that could not be written before, if any: others of the process would wait in vain.

        Raises:
            LedgerError: it still cannot be written, and no other explorer lives.
        """
        with self._lock:
            if self._unrecorded is None:
                return
            try:
                self._record(*self._unrecorded)
            except LedgerError as error:
                if self._is_fatal(self._unrecorded[1]):
                    raise LedgerError(f"{self._unrecorded[0]}; the ledger could not be told: {error}") from error
                return
            self._unrecorded = None

    def _record(self, message: str, fatal: bool) -> None:
        processes.mark_dead_processes(self._db)
        if self._is_fatal(fatal):
            processes.fail_run(self._db, self._name, message)
        else:
            processes.note(self._db, self._name, "explorer", message)
            log.warning("%s; the run goes on without it", message)

    def _is_fatal(self, fatal: bool) -> bool:
        return fatal or (self._needed and not set(processes.gauges(self._db, "explorer")) - {self._name})
