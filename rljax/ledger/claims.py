"""Transactions of the explorer: claim tasks, and store, filter, drop or hand back their groups.

Every claim has a number. Whoever stores, filters, drops or hands back a group presents that number; once the claim was
reopened, or the group claimed again, the number is stale and the write is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, select, true, update

from rljax.config.schema import staleness_credit
from rljax.ledger import schema
from rljax.ledger.database import Database, RunFailedError, StaleWriterError, is_over, record_event, run_row, storable
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.shares import Share, current_round, next_taskset
from rljax.ledger.staleness import claimable
from rljax.ledger.transaction import Transaction, reads, writes
from rljax.trajectory import Group, TaskId, encode

g, a, p, r = schema.groups.c, schema.validations.c, schema.processes.c, schema.run.c
UNLEASED = ("claimed", "ready")

# Statements of each round and group are built once: that takes SQLAlchemy several times what executing takes SQLite.
_ALIVE = select(p.pid).where(p.name == bindparam("explorer"), p.alive)
_VALIDATING = select(a.version, a.explorer).where(a.state == "claimed").order_by(a.version)
_PENDING_VALIDATION = select(a.version).where(a.state.in_(schema.UNFINISHED)).limit(1)
_IN_FLIGHT = (
    select(g.state, g.deadline, func.count().label("n"))
    .where(g.state.in_((*UNLEASED, "leased")))
    .group_by(g.state, g.deadline)
)
_NEXT_ID = select(func.coalesce(func.max(g.id), 0) + 1)
_HELD = (
    select(g.state, g.claim, r.announced, r.trained)
    .join_from(schema.groups, schema.run, true())
    .where(g.id == bindparam("group"))
)
_SETTLE = update(schema.groups).where(g.id == bindparam("group"))
_STORE_PAYLOAD = insert(schema.payloads)
_SET_RUN = update(schema.run)


@dataclass(frozen=True)
class TasksetSize:
    """Size and identity of a taskset: how many tasks an epoch has, its share, and its fingerprint."""

    name: str
    size: int
    weight: float = 1.0
    fingerprint: str = ""


@dataclass(frozen=True)
class Claim:
    """Claim on one group, which its explorer must settle.

    Its tokens come from weights of ``version`` or newer, published by ``lineage`` or a later one: an engine that still
    holds weights of a lost lineage must not serve it.
    """

    group_id: int
    number: int
    task: TaskId
    version: int
    deadline: int
    lineage: int


@dataclass(frozen=True)
class ClaimResult:
    """Result of `claim`: the claims granted; if none, ``reason`` says why, ``over`` that the run has ended."""

    claims: tuple[Claim, ...]
    reason: str = ""
    over: bool = False


@writes
def register_tasksets(tx: Transaction, tasksets: Sequence[TasksetSize], explorer: str | None = None) -> None:
    """Registers tasksets, or checks that they still are those that the run began with; ``explorer`` is who serves them.

    Raises:
        StaleWriterError: a taskset of this name has other tasks, so that it cannot be shared without repeats.
    """
    known = {row.name: row for row in tx.execute(select(schema.tasksets))}
    # A set that joins later gets its share from then on; it has nothing to catch up with.
    served = current_round({name: Share(row.weight, row.issued, row.start) for name, row in known.items()})
    for taskset in tasksets:
        if taskset.name not in known:
            tx.execute(insert(schema.tasksets).values(**asdict(taskset), issued=0, start=served))
        elif (differs := _differs(taskset, known[taskset.name])) is not None:
            raise StaleWriterError(
                f"taskset {taskset.name}: {differs}; restore the data, give the set another name "
                "(explorer.tasksets), or choose another run_dir"
            )
        elif known[taskset.name].weight != taskset.weight:
            row = known[taskset.name]
            start = row.start + row.issued / row.weight - row.issued / taskset.weight
            where = schema.tasksets.c.name == taskset.name
            tx.execute(update(schema.tasksets).where(where).values(weight=taskset.weight, start=start))
    if explorer is not None:
        names = json.dumps([taskset.name for taskset in tasksets])
        tx.execute(update(schema.processes).where(p.name == explorer).values(tasksets=names))


def _differs(taskset: TasksetSize, known: Row) -> str | None:
    if taskset.size != known.size:
        return f"{taskset.size} tasks, but this run began with {known.size}"
    if taskset.fingerprint != known.fingerprint:
        return "other problems, or another order, than this run began with under that name"
    return None


def claim(db: Database, explorer: str, tasksets: Sequence[str], limit: int) -> ClaimResult:
    """Claims up to ``limit`` tasks, reopened ones first, as far as the staleness credit allows. With a limit of 0 the
    result says why the run may grant nothing.

    An explorer that waits for credit polls; while there is none, a poll takes no write lock.

    Raises:
        RunFailedError: the run has failed.
    """
    room = db.read(lambda tx: allowed(tx, explorer))
    if isinstance(room, ClaimResult):
        return room
    if limit <= 0:
        return ClaimResult((), "its engines, which have as much to do as they can run at once")
    return db.write(lambda tx: _claim(tx, explorer, tasksets, limit))


def allowed(tx: Transaction, explorer: str) -> int | ClaimResult:
    """Returns how many groups an explorer may claim, or why none.

    Raises:
        RunFailedError: the run has failed.
    """
    row = run_row(tx)
    if row.failure:
        raise RunFailedError(row.failure)
    if not is_alive(tx, explorer):
        # Nobody would reopen its claims if it died.
        return ClaimResult((), f"{explorer} is not registered, or was declared dead; it must register again")
    room, reason = _claimable_groups(tx, tx.spec, row)
    if room <= 0:
        return ClaimResult((), reason, over=is_over(row, tx.spec.max_steps, tx.spec.total_epochs))
    return room


def _claim(tx: Transaction, explorer: str, tasksets: Sequence[str], limit: int) -> ClaimResult:
    room = allowed(tx, explorer)
    if isinstance(room, ClaimResult):
        return room
    tasks = _next_tasks(tx, tx.spec, tasksets, min(room, limit))
    claims = _grant(tx, run_row(tx), explorer, tasks)
    return ClaimResult(claims, "" if claims else unserved(tx, tx.spec.total_epochs) or "the tasksets are exhausted")


def unserved(tx: Transaction, total_epochs: int | None) -> str:
    """Returns a line that no living explorer serves any taskset with tasks left, and how many; empty where one does,
    has not said what it serves, or the tasks never end.
    """
    if total_epochs is None:
        return ""
    served: set[str] = set()
    for row in tx.execute(select(p.tasksets).where(p.role == "explorer", p.alive)):
        if row.tasksets is None:
            return ""
        served |= set(json.loads(row.tasksets))
    n = func.count().label("n")
    reopened = {r.taskset: r.n for r in tx.execute(select(g.taskset, n).where(g.state == "open").group_by(g.taskset))}
    counts = []
    for row in tx.execute(select(schema.tasksets).order_by(schema.tasksets.c.name)):
        tasks = row.size * total_epochs
        left = tasks - row.issued + reopened.get(row.name, 0)
        if left > 0 and row.name in served:
            return ""
        if left > 0:
            counts.append(f"{left} of {tasks} tasks of taskset {row.name}")
    return f"no explorer serves what is left: {', '.join(counts)}; start one that does" if counts else ""


def validating(tx: Transaction) -> tuple[int, str] | None:
    """Returns the oldest version that is being validated, and by which explorer; None if none is."""
    row = tx.execute(_VALIDATING).first()
    return None if row is None else (row.version, row.explorer)


def is_alive(tx: Transaction, explorer: str) -> bool:
    """Returns whether an explorer of this name is registered and was not declared dead."""
    return tx.execute(_ALIVE, {"explorer": explorer}).first() is not None


def in_flight(tx: Transaction) -> tuple[dict[int, int], int]:
    """Returns the deadlines of the claimed and ready groups, and the number of leased ones."""
    deadlines: dict[int, int] = {}
    leased = 0
    for row in tx.execute(_IN_FLIGHT):
        if row.state == "leased":
            leased += row.n
        else:
            deadlines[row.deadline] = deadlines.get(row.deadline, 0) + row.n
    return deadlines, leased


def unconsumed_steps(tx: Transaction, row: Row) -> list[int]:
    """Returns the steps that are trained and not consumed: those that publish until their version is announced, or,
    where the interval is filled, all that the announced version has not seen.
    """
    if row.announced >= row.trained:
        return []
    if tx.spec.fill_interval:
        return list(range(row.announced, row.trained))
    s = schema.steps.c
    where = (s.lineage == row.lineage, s.publishes, s.step >= row.announced, s.step < row.trained)
    return [r.step for r in tx.execute(select(s.step).where(*where))]


def _claimable_groups(tx: Transaction, spec: RunSpec, row: Row) -> tuple[int, str]:
    b = spec.batch_groups
    if row.announced < 0:
        return 0, "the first weights"
    if is_over(row, spec.max_steps, spec.total_epochs):
        return 0, "the run is finished"
    if row.finished:
        ended = "max_steps" if row.ended_epochs is None else "total_epochs"
        went_on = f"this run had finished at step {row.trained} and {ended} is now {getattr(spec, ended)}"
        return 0, f"the learner to go on: {went_on}"
    pending = tx.execute(_PENDING_VALIDATION).first()
    if pending is not None:
        return 0, f"the validation of version {pending.version}, which comes first"
    if not b:
        return 0, f"a version to validate: demonstrations alone are trained, {row.trained} steps so far"
    deadlines, leased = in_flight(tx)
    living = sum(deadlines.values()) + leased
    used = living + b * len(unconsumed_steps(tx, row))
    allowed = staleness_credit(spec.alpha, b, spec.sync_interval, spec.fill_interval)
    deadline, step = row.announced + spec.staleness_bound, row.trained + int(row.leasing)
    in_time = claimable(deadlines, step, b, deadline)
    to_the_end = spec.max_steps * b - row.trained * b - living
    room = min(allowed - used, in_time, to_the_end)
    if room > 0:
        return room, ""
    if to_the_end <= 0:
        return 0, "the end of the run: every group up to max_steps is claimed"
    if allowed <= used:
        awaited = f"train step {row.trained + 1}" if living else "announce a newer version"
        return 0, f"credit: {used} of {allowed} groups are outstanding; the learner must {awaited}"
    return 0, f"staleness: as many groups of version {row.announced} are open as can be trained by step {deadline}"


def _next_tasks(tx: Transaction, spec: RunSpec, names: Sequence[str], count: int) -> list[tuple[int | None, TaskId]]:
    reopened = tx.execute(
        select(g.id, g.taskset, g.epoch, g.task_index)
        .where(g.state == "open", g.taskset.in_(names))
        .order_by(g.id)
        .limit(count)
    )
    tasks: list[tuple[int | None, TaskId]] = [(r.id, TaskId(r.taskset, r.epoch, r.task_index)) for r in reopened]
    sets = {r.name: r for r in tx.execute(select(schema.tasksets).where(schema.tasksets.c.name.in_(names)))}
    issued = {name: row.issued for name, row in sets.items()}
    while len(tasks) < count:
        left = [n for n in sorted(sets) if spec.total_epochs is None or issued[n] < sets[n].size * spec.total_epochs]
        if not left:
            break
        name = next_taskset({n: Share(sets[n].weight, issued[n], sets[n].start) for n in left})
        epoch, index = divmod(issued[name], sets[name].size)
        tasks.append((None, TaskId(name, epoch, index)))
        issued[name] += 1
    for name, row in sets.items():
        if issued[name] != row.issued:
            where = schema.tasksets.c.name == name
            tx.execute(update(schema.tasksets).where(where).values(issued=issued[name]))
    return tasks


def _grant(tx: Transaction, row: Row, explorer: str, tasks: Sequence[tuple[int | None, TaskId]]) -> tuple[Claim, ...]:
    deadline, now = row.announced + tx.spec.staleness_bound, tx.now()
    first = tx.execute(_NEXT_ID).scalar_one() if tasks else 0
    new: list[dict[str, Any]] = []
    reopened: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for number, (known, task) in enumerate(tasks, start=row.claims):
        claim = Claim(first + len(new) if known is None else known, number, task, row.announced, deadline, row.lineage)
        values = {"state": "claimed", "claim": number, "explorer": explorer}
        values |= {"version": claim.version, "deadline": deadline, "claimed_at": now}
        if known is None:
            key = {"taskset": task.taskset, "epoch": task.epoch, "task_index": task.index, "retired": 0}
            new.append({"id": claim.group_id, **values, **key})
        else:
            reopened.append({"known": known, **values})
        claims.append(claim)
    if new:
        tx.execute(insert(schema.groups), new)
    if reopened:
        tx.execute(update(schema.groups).where(g.id == bindparam("known")), reopened)
    tx.execute(_SET_RUN, {"claims": row.claims + len(claims)})
    return tuple(claims)


@reads
def held_by(tx: Transaction, explorer: str) -> set[int]:
    """Returns the numbers of the claims that this explorer holds."""
    return {row.claim for row in tx.execute(select(g.claim).where(g.state == "claimed", g.explorer == explorer))}


def store(db: Database, stored: Sequence[tuple[Claim, Group]]) -> list[Exception | None]:
    """Stores whole groups in one transaction and closes their claims; returns for each why it is not kept, or None: a
    StaleWriterError where the claim is no longer this one's, or a token is of a withdrawn version and the task is open
    again; a ValueError where a token is older than the claim allows; what `encode` raises.
    """
    packed = [_packed(group) for _, group in stored]
    return db.write(lambda tx: [_refusal(tx, claim, one) for (claim, _), one in zip(stored, packed, strict=True)])


def _packed(group: Group) -> tuple[Mapping[int, int], bytes] | Exception:
    try:
        return group.version_counts(), encode(group)
    except Exception as error:  # a workflow's: the other groups are whole
        return error


def _refusal(tx: Transaction, claim: Claim, packed: tuple[Mapping[int, int], bytes] | Exception) -> Exception | None:
    """Stores a group, or returns why it cannot be."""
    if isinstance(packed, Exception):
        return packed
    counts, payload = packed
    try:
        row = _held(tx, claim)
    except StaleWriterError as error:
        return error
    if counts and min(counts) < claim.version:
        return ValueError(f"group {claim.group_id}: a token of version {min(counts)}, claimed at {claim.version}")
    newest = max(counts, default=None)
    # Between a restart and its first announcement, the versions up to the checkpoint's are those that stand.
    if newest is not None and newest > (row.announced if row.announced >= 0 else row.trained):
        tx.execute(_SETTLE, {"group": claim.group_id, "state": "open"})
        return StaleWriterError(f"group {claim.group_id}: tokens of version {newest}, which was withdrawn")
    tx.execute(_STORE_PAYLOAD, {"group_id": claim.group_id, "data": payload})
    said = {"stored_at": tx.now(), "max_version": newest, "version_counts": json.dumps(counts)}
    tx.execute(_SETTLE, {"group": claim.group_id, "state": "ready", **said})
    return None


@writes
def settle(tx: Transaction, claim: Claim, state: str, reason: str) -> None:
    """Closes a claim as ``filtered`` or ``dropped``, with its reason. Its credit returns and another task replaces it.

    Raises:
        StaleWriterError: the claim is no longer this one's.
    """
    if state not in ("filtered", "dropped"):
        raise ValueError(f"a claim is settled as filtered or dropped, not {state!r}")
    values = {"state": state, "reason": storable(reason), "step": _held(tx, claim).trained}
    tx.execute(_SETTLE, {"group": claim.group_id, **values})


@writes
def hand_back(tx: Transaction, explorer: str, kind: str = "") -> int:
    """Reopens every open claim of an explorer that leaves, restarts or died; returns how many.

    ``kind`` names the fault that made it necessary; empty for a planned leave.
    """
    return reopen_claims_of(tx, explorer, kind)


def reopen_claims_of(tx: Transaction, explorer: str, kind: str) -> int:
    """Reopens claims as `hand_back` does, inside a transaction of the caller's."""
    where = (g.state == "claimed", g.explorer == explorer)
    count = tx.execute(update(schema.groups).where(*where).values(state="open")).rowcount
    if count and kind:
        record_event(tx, explorer, kind, f"{count} open claims of {explorer} were reopened")
    return count


def discard_payloads(tx: Transaction, group_ids: Sequence[int]) -> None:
    """Deletes the payloads of these groups."""
    for start in range(0, len(group_ids), 500):
        some = group_ids[start : start + 500]
        tx.execute(delete(schema.payloads).where(schema.payloads.c.group_id.in_(some)))


def states_of(tx: Transaction) -> dict[str, int]:
    """Counts the groups by state."""
    return {row.state: row.n for row in tx.execute(select(g.state, func.count().label("n")).group_by(g.state))}


states = reads(states_of)


def _held(tx: Transaction, claim: Claim) -> Row:
    found = tx.execute(_HELD, {"group": claim.group_id}).one_or_none()
    if found is None or found.state != "claimed" or found.claim != claim.number:
        raise StaleWriterError(f"group {claim.group_id} ({claim.task}): claim {claim.number} has expired")
    return found
