"""Transactions of validations: requested with a version, run by one explorer, reclaimable when it dies (promise P8)."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping

from sqlalchemy import delete, func, select, update

from rljax.ledger import schema
from rljax.ledger.claims import is_alive, validating
from rljax.ledger.database import Database, StaleWriterError, record_event, run_row
from rljax.ledger.transaction import Transaction, reads, writes
from rljax.ledger.versions import Announced, get_version, request_validation

a = schema.validations.c


request = writes(request_validation)


class OtherPlanError(RuntimeError):
    """This explorer would measure something other than the learner wants measured."""


def claim_validation(db: Database, explorer: str, plan: str | None = None) -> Announced | None:
    """Takes the oldest requested validation; returns the version that it is pinned to. None for an explorer that is not
    registered as alive: nobody would reclaim it. ``plan`` is the fingerprint of what it would measure.

    Raises:
        OtherPlanError: another plan's validation is requested. See `rljax.ledger.compatibility.record_validation_plan`.
    """
    # An idle explorer polls: that must take no write lock.
    requested = db.read(lambda tx: tx.execute(select(a.version).where(a.state == "requested").limit(1)).first())
    return None if requested is None else db.write(lambda tx: _claim_validation(tx, explorer, plan))


def _claim_validation(tx: Transaction, explorer: str, plan: str | None) -> Announced | None:
    if not is_alive(tx, explorer):
        return None
    if plan is not None and run_row(tx).validation not in (None, plan):
        raise OtherPlanError(
            f"{explorer}: validation tasks, sampling or val_batch_size are not those of the trainer's config; "
            "this explorer leaves validations to others"
        )
    row = tx.execute(select(a.version, a.lineage).where(a.state == "requested").order_by(a.version)).first()
    if row is None:
        return None
    where = (a.version == row.version, a.lineage == row.lineage)
    tx.execute(update(schema.validations).where(*where).values(state="claimed", explorer=explorer))
    return get_version(tx, row.version, row.lineage)


@writes
def finish_validation(tx: Transaction, explorer: str, pinned: Announced, result: Mapping[str, float]) -> None:
    """Records the metrics of a validation.

    Raises:
        StaleWriterError: it was withdrawn, or another explorer has taken it over.
    """
    where = (a.version == pinned.version, a.lineage == pinned.lineage, a.state == "claimed", a.explorer == explorer)
    values = {"state": "done", "result": json.dumps(dict(result))}
    if not tx.execute(update(schema.validations).where(*where).values(values)).rowcount:
        raise StaleWriterError(f"the validation of version {pinned.version} is no longer {explorer}'s")


@writes
def settle_lost_validation(tx: Transaction, explorer: str, pinned: Announced) -> str:
    """Resolves a validation whose version is gone with the learner that held it in memory.

    The learner that lives now may have published the same weights again: then those are validated. Otherwise, once it
    has published at all, nobody can validate this version any more, and the request is withdrawn and noted. Until then
    it is given back.

    Returns:
        One line that says what was done; empty if there is nothing to do but to wait for a learner to publish.
    """
    row, v = run_row(tx), schema.versions.c
    where = (a.version == pinned.version, a.lineage == pinned.lineage, a.state == "claimed", a.explorer == explorer)
    if row.announced_lineage <= pinned.lineage:
        tx.execute(update(schema.validations).where(*where).values(state="requested", explorer=None))
        return ""
    again = tx.execute(
        select(v.lineage).where(v.version == pinned.version, v.lineage > pinned.lineage, ~v.withdrawn, ~v.deleted)
    ).scalar()
    if again is not None:
        values = {"lineage": again, "state": "requested", "explorer": None}
        tx.execute(update(schema.validations).where(*where).values(values))
        return f"version {pinned.version} of lineage {pinned.lineage} is gone: that of lineage {again} is validated"
    tx.execute(delete(schema.validations).where(*where))
    message = f"version {pinned.version} of lineage {pinned.lineage} is gone: it is not validated"
    record_event(tx, explorer, "validation_withdrawn", message)
    return message


def count_unfinished(tx: Transaction) -> int:
    """Returns the validations requested or running."""
    return tx.execute(select(func.count()).where(a.state.in_(schema.UNFINISHED))).scalar_one()


unfinished = reads(count_unfinished)
running = reads(validating)


def take_unreported(db: Database) -> Generator[tuple[int, dict[str, float]]]:
    """Yields the (version, metrics) of validations done and not yet logged, oldest first.

    One is marked logged when the caller comes back for the next: if it dies meanwhile it gets it once more, for logging
    twice does no harm and losing it would.
    """
    done = select(schema.validations).where(a.state == "done", ~a.reported).order_by(a.version)
    for row in db.read(lambda tx: tx.execute(done).all()):
        yield row.version, json.loads(row.result)
        logged = update(schema.validations).where(a.version == row.version, a.lineage == row.lineage)
        db.write(lambda tx, logged=logged: tx.execute(logged.values(reported=True)))  # type: ignore[misc]


@reads
def results(tx: Transaction) -> list[tuple[int, dict[str, float]]]:
    """Returns the (version, metrics) of every validation done, by version."""
    rows = tx.execute(select(schema.validations).where(a.state == "done").order_by(a.version))
    return [(row.version, json.loads(row.result)) for row in rows]
