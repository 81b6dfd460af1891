"""Checks what the processes of a run must agree on beyond `RunSpec`: its model, its demonstrations, its validations."""

from __future__ import annotations

from sqlalchemy import update

from rljax.ledger import schema
from rljax.ledger.database import LedgerError, run_row
from rljax.ledger.transaction import Transaction, reads, writes


@writes
def check_model(tx: Transaction, fingerprint: str, path: str) -> None:
    """Records the model of the run, unless it has another; ``path`` is its path in this process.

    Raises:
        LedgerError: the run has another model, and claims, a learner or a version of it.
    """
    row = run_row(tx)
    if row.model not in (None, fingerprint) and (row.claims or row.lineage or row.announced >= 0):
        raise LedgerError(
            f"{tx.db.label}: model.path={path}: shape, vocabulary or end tokens of this model are not those of the "
            "run's; use the run's own model, or another run_dir"
        )
    tx.execute(update(schema.run).values(model=fingerprint))


@reads
def model_of(tx: Transaction) -> str | None:
    """Returns the fingerprint of the run's model; None where no process has said it."""
    found: str | None = run_row(tx).model
    return found


@writes
def check_demonstrations(tx: Transaction, fingerprint: str, source: str) -> None:
    """Records the demonstrations of the run, unless it began with others; ``source`` is their path in this process.

    Raises:
        LedgerError: the run began with others, and has trained some of them.
    """
    row = run_row(tx)
    if row.demonstrations not in (None, fingerprint) and row.trained:
        raise LedgerError(
            f"{tx.db.label}: tasks.expert.source={source}: other demonstrations, or another order, template or limit, "
            "than this run began with; restore the data and tasks.expert, or choose another run_dir"
        )
    tx.execute(update(schema.run).values(demonstrations=fingerprint))


@writes
def record_validation_plan(tx: Transaction, fingerprint: str) -> None:
    """Records what the learner wants validated: an explorer that would measure something else leaves it to others."""
    tx.execute(update(schema.run).values(validation=fingerprint))
