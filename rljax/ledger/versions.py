"""Transactions of versions: announced, withdrawn, deleted, and the probe difference between engines and learner."""

from __future__ import annotations

import numpy as np
from sqlalchemy import bindparam, insert, select, update

from rljax.ledger import schema
from rljax.ledger.announced import Announced
from rljax.ledger.database import run_row
from rljax.ledger.leases import require_living
from rljax.ledger.transaction import Transaction, reads, writes

v = schema.versions.c

_AT = select(schema.versions).where(v.version == bindparam("number"), ~v.withdrawn).order_by(v.lineage.desc())


@writes
def announce(
    tx: Transaction, lineage: int, version: int, path: str, *, probe: np.ndarray | None = None, validate: bool = False
) -> None:
    """Announces a written version, and with it frees the credit of the batches it has seen. Once is enough: of two
    explorers that publish the initial weights, the second changes nothing.

    Args:
        tx: the ledger.
        lineage: the learner's; 0 for initial weights that an explorer publishes before any learner lives.
        version: batches that the weights have seen.
        path: directory of the version, relative to the run directory.
        probe: float32 ``[probe]``, log-probabilities that the learner gives the probe (promise P7).
        validate: request a validation of exactly this version.

    Raises:
        StaleWriterError: a newer lineage lives.
    """
    require_living(tx, lineage)
    if tx.execute(select(v.version).where(v.version == version, v.lineage == lineage)).first() is not None:
        return
    values = {"path": path, "announced_at": tx.now(), "withdrawn": False, "deleted": False, "gap": None}
    probe_bytes = None if probe is None else np.asarray(probe, np.float32).tobytes()
    tx.execute(insert(schema.versions).values(version=version, lineage=lineage, probe=probe_bytes, **values))
    tx.execute(update(schema.run).values(announced=version, announced_lineage=lineage))
    if validate:
        request_validation(tx, version, lineage)


def request_validation(tx: Transaction, version: int, lineage: int) -> None:
    """Requests a validation of an announced version, unless there has been one."""
    a = schema.validations.c
    if tx.execute(select(a.version).where(a.version == version)).first() is None:
        values = {"version": version, "lineage": lineage, "state": "requested", "reported": False}
        tx.execute(insert(schema.validations).values(values))


def newest_version(tx: Transaction) -> Announced | None:
    """Returns the version that engines should serve; None before the first."""
    row = run_row(tx)
    if row.announced < 0:
        return None
    found = tx.execute(_AT, {"number": row.announced}).first()
    return None if found is None else _announced(found)


newest = reads(newest_version)


@reads
def find(tx: Transaction, version: int) -> Announced | None:
    """Returns an announced version by its number, None unless its files are to be there."""
    where = (v.version == version, ~v.withdrawn, ~v.deleted)
    found = tx.execute(select(schema.versions).where(*where).order_by(v.lineage.desc())).first()
    return None if found is None else _announced(found)


def get_version(tx: Transaction, version: int, lineage: int) -> Announced:
    """Returns one announced version."""
    return _announced(tx.execute(select(schema.versions).where(v.version == version, v.lineage == lineage)).one())


get = reads(get_version)


@writes
def report_gap(tx: Transaction, version: int, lineage: int, gap: float, mean_gap: float) -> None:
    """Records the largest and the mean probe difference, in nats, between the learner and the engines of an explorer
    that loaded this version. Of several explorers the largest of each stands.
    """
    where = (v.version == version, v.lineage == lineage)
    known = tx.execute(select(v.gap, v.mean_gap).where(*where)).one()
    values = {"gap": max(gap, known.gap or 0.0), "mean_gap": max(mean_gap, known.mean_gap or 0.0)}
    tx.execute(update(schema.versions).where(*where).values(values))


@reads
def latest_gap(tx: Transaction) -> tuple[int, float, float] | None:
    """Returns the newest version with a reported gap, and the largest and the mean gap in nats."""
    where = (v.gap.is_not(None), ~v.withdrawn)
    newest = select(v.version, v.gap, v.mean_gap).where(*where).order_by(v.version.desc(), v.lineage.desc())
    row = tx.execute(newest.limit(1)).first()
    return None if row is None else (row.version, row.gap, row.mean_gap)


@writes
def take_deletable(tx: Transaction, lineage: int, spare: int = 1) -> list[Announced]:
    """Marks as deleted, and returns, the versions that nobody needs: not the newest and ``spare`` before it, which
    somebody may be about to load, not one that a live process uses or loads, not one whose validation is not done.
    """
    row = require_living(tx, lineage)
    p, a = schema.processes.c, schema.validations.c
    needed = {version for r in tx.execute(select(p.version, p.loading).where(p.alive)) for version in r}
    needed |= {r.version for r in tx.execute(select(a.version).where(a.state.in_(schema.UNFINISHED)))}
    # Not in the database's order: that of the primary key would lead it past all that were ever deleted.
    found = tx.execute(select(schema.versions).where(~v.deleted)).all()
    standing = sorted(found, key=lambda r: (r.version, r.lineage))
    good = [r for r in standing if not r.withdrawn]
    keep = {(r.version, r.lineage) for r in good[-1 - spare :]} | {(row.announced, row.announced_lineage)}
    old = [r for r in standing if (r.version, r.lineage) not in keep and r.version not in needed]
    for r in old:
        where = (v.version == r.version, v.lineage == r.lineage)
        tx.execute(update(schema.versions).where(*where).values(deleted=True))
    return [_announced(r) for r in old]


@reads
def standing(tx: Transaction) -> set[tuple[int, int]]:
    """Returns the (version, lineage) of every version whose files are to be there."""
    return {(row.version, row.lineage) for row in tx.execute(select(v.version, v.lineage).where(~v.deleted))}


def _announced(row: object) -> Announced:
    probe = row.probe  # type: ignore[attr-defined]
    array = None if probe is None else np.frombuffer(probe, np.float32)
    return Announced(row.version, row.lineage, row.path, array)  # type: ignore[attr-defined]


@reads
def lineage(tx: Transaction) -> int:
    """Returns the living lineage; 0 before the first learner."""
    return int(run_row(tx).lineage)
