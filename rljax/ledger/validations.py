"""Validations in the ledger: requested with a version, run by one explorer, reclaimable when it dies (promise P8)."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping

from sqlalchemy import delete, func, select, update

from rljax.ledger import schema
from rljax.ledger.claims import is_alive, validating
from rljax.ledger.database import Database, StaleWriterError, record_event, run_row
from rljax.ledger.versions import Announced, get, request_validation

a = schema.validations.c


def request(db: Database, version: int, lineage: int) -> None:
    """Asks for a validation of an announced version, unless there has been one."""
    with db.transaction() as tx:
        request_validation(tx, version, lineage)


def claim_validation(db: Database, explorer: str) -> Announced | None:
    """Takes the oldest requested validation; returns the version that it is pinned to. None for an explorer that is not
    registered as alive: nobody would reclaim it.
    """
    with db.transaction() as tx:
        if not is_alive(tx, explorer):
            return None
        row = tx.execute(select(a.version, a.lineage).where(a.state == "requested").order_by(a.version)).first()
        if row is None:
            return None
        where = (a.version == row.version, a.lineage == row.lineage)
        tx.execute(update(schema.validations).where(*where).values(state="claimed", explorer=explorer))
    return get(db, row.version, row.lineage)


def finish_validation(db: Database, explorer: str, pinned: Announced, result: Mapping[str, float]) -> None:
    """Records the metrics of a validation.

    Raises:
        StaleWriterError: it was withdrawn, or another explorer has taken it over.
    """
    with db.transaction() as tx:
        where = (a.version == pinned.version, a.lineage == pinned.lineage, a.state == "claimed", a.explorer == explorer)
        values = {"state": "done", "result": json.dumps(dict(result))}
        if not tx.execute(update(schema.validations).where(*where).values(values)).rowcount:
            raise StaleWriterError(f"the validation of version {pinned.version} is no longer {explorer}'s")


def weights_gone(db: Database, explorer: str, pinned: Announced) -> str:
    """What becomes of a validation whose version was lost with the learner that held it in memory.

    The learner that lives now may have published the same weights again: then those are validated. Otherwise, once it
    has published at all, nobody can validate this version any more, and the request is withdrawn and noted. Until then
    it is given back.

    Returns:
        One line that says what was done; empty if there is nothing to do but to wait for a learner to publish.
    """
    with db.transaction() as tx:
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
        record_event(tx, db.clock(), explorer, "validation_withdrawn", message)
        return message


def unfinished(db: Database) -> int:
    """Validations requested or running."""
    with db.read() as tx:
        return tx.execute(select(func.count()).where(a.state != "done")).scalar_one()


def running(db: Database) -> tuple[int, str] | None:
    """The oldest version that is being validated, and by which explorer; None if none is."""
    with db.read() as tx:
        return validating(tx)


def take_unreported(db: Database) -> Generator[tuple[int, dict[str, float]]]:
    """The (version, metrics) of validations done and not yet logged, oldest first.

    One is marked logged when the caller comes back for the next: whoever dies over it gets it once more, for logging
    twice does no harm and losing it would.
    """
    with db.read() as tx:
        rows = tx.execute(select(schema.validations).where(a.state == "done", ~a.reported).order_by(a.version)).all()
    for row in rows:
        yield row.version, json.loads(row.result)
        with db.transaction() as tx:
            where = (a.version == row.version, a.lineage == row.lineage)
            tx.execute(update(schema.validations).where(*where).values(reported=True))


def results(db: Database) -> list[tuple[int, dict[str, float]]]:
    """The (version, metrics) of every validation done, by version."""
    with db.read() as tx:
        rows = tx.execute(select(schema.validations).where(a.state == "done").order_by(a.version))
        return [(row.version, json.loads(row.result)) for row in rows]
