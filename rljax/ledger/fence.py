"""Fences off replaced learners: a learner may change the run directory until another learner begins its lineage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from rljax.ledger.database import Database, StaleWriterError, Transaction, reads, run_row


@dataclass(frozen=True)
class Fence:
    """Checks, right before every write that could destroy what another learner has written, that this learner is not
    replaced: a process that was stopped, replaced and continued finds out there.

    Between the answer and the write it may be stopped once more. Each writer therefore also keeps to what is its own,
    so that a late write does no harm: `rljax.observe.metrics.MetricsLog` to the file that it put in place,
    `rljax.learner.checkpoints.Checkpoints` and `rljax.weights.publisher.OrbaxPublisher` to names with its lineage,
    samples and trace to parts of its process. What is left is the instant between the question and the rename by which
    metrics or a checkpoint take or leave their place; a living learner's next row puts its metrics back.
    """

    db: Database
    lineage: int

    def check(self) -> None:
        """Checks that this learner is the living one.

        Raises:
            StaleWriterError: another has taken over; nothing may be written any more.
        """
        _check(self.db, self.lineage)


@reads
def _check(tx: Transaction, lineage: int) -> None:
    check_lineage(run_row(tx), lineage)


def check_lineage(row: Row[Any], lineage: int) -> None:
    """Checks that ``lineage`` is the living one in the run's row.

    Raises:
        StaleWriterError: another lineage is.
    """
    if row.lineage != lineage:
        raise StaleWriterError(f"lineage {lineage} has been replaced by {row.lineage}: another trainer has taken over")
