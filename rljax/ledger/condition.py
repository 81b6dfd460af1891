"""Tells who only looks what a run is doing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from rljax.ledger import schema
from rljax.ledger.database import run_row
from rljax.ledger.leases import next_batch
from rljax.ledger.liveness import split_by_life
from rljax.ledger.processes import sum_of_gauges
from rljax.ledger.transaction import Transaction, reads
from rljax.ledger.validations import count_unfinished


@dataclass(frozen=True)
class Condition:
    """The state of a run, with its processes.

    Attributes:
        trained: batches in the surviving weights.
        began: seconds since 1970 at which its newest learner began; None before the first.
        alive: names of the processes that live, whatever their rows say.
        ready: groups that wait to be trained.
        waits: what keeps it from training; None where nothing does.
        failure: why it cannot go on; None where it can.
        finished: it has ended.
        gauges: of its explorers, added up.
    """

    trained: int
    began: float | None
    alive: tuple[str, ...]
    ready: int
    waits: str | None
    failure: str | None
    finished: bool
    gauges: dict[str, float]


@reads
def condition(tx: Transaction) -> Condition:
    """Returns what the run is doing."""
    row, g, lineages = run_row(tx), schema.groups.c, schema.lineages.c
    living, _ = split_by_life(tx, tx.spec.claim_timeout)
    return Condition(
        trained=row.trained,
        began=tx.execute(select(func.max(lineages.started_at))).scalar_one(),
        alive=tuple(process.name for process in living),
        ready=tx.execute(select(func.count()).where(g.state.in_(("ready", "leased")))).scalar_one(),
        waits=_waits(tx, {process.role for process in living}),
        failure=row.failure,
        finished=bool(row.finished),
        gauges=sum_of_gauges(tx, "explorer"),
    )


def _waits(tx: Transaction, roles: set[str]) -> str | None:
    row = run_row(tx)
    if not roles:
        return "a process: none of this run is alive; its command goes on with it"
    if "trainer" not in roles:
        return "a learner: none is alive; start one (mode=train, or both)"
    if row.announced < 0:
        return "the learner to begin"
    if row.trained >= tx.spec.max_steps:
        left = count_unfinished(tx)
        return f"{left} validation{'s' if left > 1 else ''} to end" if left else "the learner to end"
    if row.leasing:
        return None
    _, missing = next_batch(tx, row)
    return None if missing is None else str(missing)
