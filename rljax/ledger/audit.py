"""Audits a run: what each claimed task became, proved from the recorded batches (promises P3 and P5).

The counts come from `groups`; the claims about training come from `batches`, which is written once and never changed.
A batch *survives* if no later lineage started from a version that had not seen it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select

from rljax.ledger import schema
from rljax.ledger.claims import states_of
from rljax.ledger.database import run_row
from rljax.ledger.transaction import Transaction, reads

g, b = schema.groups.c, schema.batches.c
OPEN = ("open", "claimed", "ready", "leased")
ROWS_AT_ONCE = 1000
"""Rows of `batches` that are held at once."""


@reads
def audit(tx: Transaction) -> dict[str, Any]:
    """Returns the audit as plain JSON: the keys that ARCHITECTURE.md fixes, and ``problems``: why it does not balance.

    ``trained_twice`` are groups that were trained in more steps than ``max_uses``; ``uses`` tells in how many, groups
    by number of steps.
    """
    by_state = states_of(tx)
    (surviving, tokens), demonstrated = _surviving_batches(tx), _surviving_demonstrations(tx)
    trained_in = Counter(group_id for batch in surviving.values() for group_id in batch)
    report: dict[str, Any] = {
        "claimed": sum(by_state.values()),
        "trained": by_state.get("trained", 0),
        "open": sum(by_state.get(state, 0) for state in OPEN),
        "open_by_state": {state: by_state[state] for state in OPEN if by_state.get(state)},
        "dropped": _by_reason(tx, "dropped"),
        "filtered": _by_reason(tx, "filtered"),
        "demonstrations": sum(demonstrated.values()),
        "trained_twice": sum(1 for times in trained_in.values() if times > tx.spec.max_uses),
        "max_uses": tx.spec.max_uses,
        "uses": {str(times): n for times, n in sorted(Counter(trained_in.values()).items())},
        "steps": run_row(tx).trained,
        "max_staleness": max(tokens, default=0),
        "staleness_bound": tx.spec.staleness_bound,
        "staleness_histogram": {str(age): tokens[age] for age in sorted(tokens)},
        "tasksets": _tasksets(tx),
        "explorers": _states_by(tx, g.explorer),
        "versions": _versions(tx),
        "lineages": [dict(row._mapping) for row in tx.execute(select(schema.lineages).order_by(schema.lineages.c.id))],
        "retired": tx.execute(select(func.coalesce(func.sum(g.retired), 0))).scalar_one(),
        "faults": _faults(tx),
        "gaps": _gaps(tx),
        "finished": bool(run_row(tx).finished),
        "failure": run_row(tx).failure,
    }
    report["problems"] = _problems(tx, report, surviving, trained_in, demonstrated)
    report["balanced"] = not report["problems"]
    return report


def _surviving_batches(tx: Transaction) -> tuple[dict[int, list[int]], Counter[int]]:
    """Returns the groups of each step, in order, and the trained tokens by staleness. Rows are read some at a time: a
    learner that writes its report would hold all of a long run beside its weights.
    """
    surviving: dict[int, list[int]] = {}
    tokens: Counter[int] = Counter()
    rows = select(b.lineage, b.step, b.group_id, b.version_counts).order_by(b.lineage, b.step, b.position)
    for row in _surviving(tx, rows.execution_options(yield_per=ROWS_AT_ONCE)):
        surviving.setdefault(row.step, []).append(row.group_id)
        for version, count in json.loads(row.version_counts).items():
            tokens[row.step - int(version)] += count
    return surviving, tokens


def _surviving_demonstrations(tx: Transaction) -> dict[int, int]:
    return {row.step: row.demonstrations for row in _surviving(tx, select(schema.steps))}


def _surviving(tx: Transaction, rows: Select[Any]) -> Iterator[Row[Any]]:
    """Returns the rows of steps that no later lineage has undone."""
    starts = {row.id: row.from_version for row in tx.execute(select(schema.lineages))}

    def stands(row: Row[Any]) -> bool:
        return all(start > row.step for lineage, start in starts.items() if lineage > row.lineage)

    return filter(stands, tx.execute(rows))


def _by_reason(tx: Transaction, state: str) -> dict[str, int]:
    query = select(g.reason, func.count().label("n")).where(g.state == state).group_by(g.reason).order_by(g.reason)
    return {row.reason: row.n for row in tx.execute(query)}


def _states_by(tx: Transaction, column: ColumnElement[str]) -> dict[str, dict[str, int]]:
    """Counts groups by state, for each value of a column; a group counts for the explorer of its newest claim."""
    found: dict[str, dict[str, int]] = {}
    query = select(column.label("name"), g.state, func.count().label("n")).group_by(column, g.state)
    for row in tx.execute(query.order_by(column, g.state)):
        found.setdefault(row.name, {})[row.state] = row.n
    return found


def _tasksets(tx: Transaction) -> dict[str, dict[str, int]]:
    """Returns for every taskset of an explorer: tasks of an epoch, tasks ever claimed, and these by state."""
    states, name = _states_by(tx, g.taskset), schema.tasksets.c.name
    rows = tx.execute(select(schema.tasksets).order_by(name))
    return {row.name: {"size": row.size, "issued": row.issued, **states.get(row.name, {})} for row in rows}


def _versions(tx: Transaction) -> dict[str, Any]:
    v = schema.versions.c
    rows = tx.execute(select(v.version, v.lineage, v.withdrawn).order_by(v.announced_at)).all()
    standing = [row.version for row in rows if not row.withdrawn]
    return {"announced": len(rows), "withdrawn": len(rows) - len(standing), "newest": max(standing, default=-1)}


def _faults(tx: Transaction) -> dict[str, int]:
    kind = schema.events.c.kind
    return {row.kind: row.n for row in tx.execute(select(kind, func.count().label("n")).group_by(kind))}


def _gaps(tx: Transaction) -> dict[str, list[int]]:
    """Returns positions that a taskset's cursor has passed without a row: tasks lost in silence."""
    gaps = {}
    for row in tx.execute(select(schema.tasksets)):
        tasks = tx.execute(select(g.epoch, g.task_index).where(g.taskset == row.name))
        seen = {task.epoch * row.size + task.task_index for task in tasks}
        missing = sorted(set(range(row.issued)) - seen)
        if missing:
            gaps[row.name] = missing[:20]
    return gaps


def _problems(
    tx: Transaction,
    report: dict[str, Any],
    surviving: dict[int, list[int]],
    trained_in: Counter[int],
    demonstrated: dict[int, int],
) -> list[str]:
    problems = []
    settled = report["trained"] + report["open"] + sum(report["dropped"].values()) + sum(report["filtered"].values())
    if settled != report["claimed"]:
        problems.append(f"{report['claimed']} groups were claimed, but {settled} are accounted for")
    if report["trained_twice"]:
        often = "twice" if tx.spec.max_uses == 1 else f"more than {tx.spec.max_uses} times"
        problems.append(f"{report['trained_twice']} groups were trained {often}")
    marked = {row.id for row in tx.execute(select(g.id).where(g.state == "trained"))}
    if marked != set(trained_in):
        problems.append(f"{len(marked ^ set(trained_in))} groups are marked trained and in no batch, or the reverse")
    standing = surviving if tx.spec.batch_groups else demonstrated
    if sorted(standing) != list(range(report["steps"])):
        problems.append(f"the surviving batches are not those of steps 0 to {report['steps'] - 1}")
    problems += _wrong_batches(tx, surviving)
    each = tx.spec.demonstrations
    if wrong := [step for step, count in sorted(demonstrated.items()) if count != each]:
        problems.append(f"steps {wrong[:5]} did not train {each} demonstrations")
    if report["max_staleness"] > report["staleness_bound"]:
        problems.append(f"a token was {report['max_staleness']} steps stale, the bound is {report['staleness_bound']}")
    if min((int(age) for age in report["staleness_histogram"]), default=0) < 0:
        problems.append("a token was trained by a step older than its weights")
    if report["gaps"]:
        problems.append(f"tasks were issued and have no row: {report['gaps']}")
    return problems


def _wrong_batches(tx: Transaction, surviving: dict[int, list[int]]) -> list[str]:
    """Checks that each step trains ``batch_groups`` groups that none before it has trained, then at most
    ``reused_groups`` others; returns the violations.
    """
    size, reused = tx.spec.batch_groups, tx.spec.reused_groups
    short, mixed = [], []
    before: set[int] = set()
    for step, ids in sorted(surviving.items()):
        if not size <= len(ids) <= size + reused:
            short.append(step)
        elif reused and (before & set(ids[:size]) or set(ids[size:]) - before or len(set(ids)) < len(ids)):
            mixed.append(step)
        before |= set(ids)
    problems = []
    if short:
        more = f" and up to {reused} again" if reused else ""
        problems.append(f"steps {short[:5]} did not train {size} groups{more}")
    if mixed:
        problems.append(f"steps {mixed[:5]} did not train {size} new groups and then old ones, each once")
    return problems
