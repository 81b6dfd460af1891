"""Counts groups that no step trains, by reason: for the learner that waits for groups, and for each step's metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select

from rljax.ledger import schema
from rljax.ledger.transaction import Transaction, reads

g = schema.groups.c
n = func.count().label("n")

_UNTRAINED = (
    select(g.state, g.reason, n)
    .where(g.state.in_(("dropped", "filtered")), g.deadline >= bindparam("step"))
    .group_by(g.state, g.reason)
    .order_by(n.desc(), g.reason)
    .limit(3)
)
_LAST_KEPT = select(func.coalesce(func.max(g.claim), -1)).where(
    g.state.in_(("ready", "leased", "trained")), g.deadline >= bindparam("step")
)
_STREAK = (
    select(g.reason, n)
    .where(g.state == "filtered", g.deadline >= bindparam("step"), g.claim > _LAST_KEPT.scalar_subquery())
    .group_by(g.reason)
    .order_by(n.desc(), g.reason)
)


@dataclass(frozen=True)
class FilteredStreak:
    """Number of groups that were filtered one after another, and the reason that most of them share."""

    groups: int
    reason: str


@reads
def filtered_during(tx: Transaction, step: int) -> dict[str, int]:
    """Counts by reason the groups filtered before ``step`` (batches completed) was trained and after the one before it.

    The ledger knows of each group when that was, so that a step that is trained again counts its own, and a sum over
    the steps counts no group twice, however often the learner was restarted. Those filtered after the last step are in
    none; the audit counts them.
    """
    return {row.reason: row.n for row in tx.execute(_of_step(step, g.reason)) if row.state == "filtered"}


@reads
def filtered_by_taskset(tx: Transaction, step: int) -> dict[str, int]:
    """Counts by taskset the groups that `filtered_during` counts by reason."""
    return {row.taskset: row.n for row in tx.execute(_of_step(step, g.taskset)) if row.state == "filtered"}


def _of_step(step: int, column: ColumnElement[str]) -> Select[Any]:
    """Returns a query that counts a step's groups by state and ``column``. It asks for the step alone: with the state
    as well, the planner may go through every group that was ever filtered.
    """
    return select(g.state, column, n).where(g.step == step).group_by(g.state, column)


def describe_untrained(tx: Transaction, step: int) -> str:
    """Counts, in a line by state and reason, the dropped and filtered groups that this step could have trained."""
    rows = tx.execute(_UNTRAINED, {"step": step}).all()
    reasons = ", ".join(f"{row.n} {row.state}: {row.reason}" for row in rows)
    return f"; of those in time for step {step}, {reasons}" if rows else ""


def filtered_streak(tx: Transaction, step: int) -> FilteredStreak | None:
    """Counts the filtered groups that this step could have trained and that were claimed after the last one kept."""
    rows = tx.execute(_STREAK, {"step": step}).all()
    return FilteredStreak(sum(row.n for row in rows), rows[0].reason) if rows else None
