"""Transactions of the learner: begin a lineage, lease a batch, mark it trained.

Each carries the lineage; once another learner has begun a newer one, every write of the older is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Row, bindparam, delete, exists, func, insert, or_, select, update

from rljax.ledger import schema
from rljax.ledger.claims import discard_payloads, in_flight, unserved, validating
from rljax.ledger.database import LedgerError, RunFailedError, StaleWriterError, record_event, run_row
from rljax.ledger.fence import check_lineage
from rljax.ledger.filtered_streak import FilteredStreak, describe_untrained, filtered_streak
from rljax.ledger.processes import check_life, record_failure, sum_of_gauges
from rljax.ledger.staleness import feasible
from rljax.ledger.transaction import Transaction, reads, writes
from rljax.trajectory import Group, decode

g, b, p = schema.groups.c, schema.batches.c, schema.payloads.c

# Built once, as in `rljax.ledger.claims`: a learner that waits asks for a lease whenever a group is stored.
_READY = select(g.id, g.deadline).where(g.state == "ready").order_by(g.deadline, g.id).limit(bindparam("size"))
_LEASED = select(g.id).where(g.state == "leased").order_by(g.position)
_LEASE = update(schema.groups).where(g.id == bindparam("chosen"))
_SET_RUN = update(schema.run)
_PAYLOADS = select(p.group_id, p.data).where(p.group_id.in_(bindparam("groups", expanding=True)))
_VERSION_COUNTS = select(g.id, g.version_counts).where(g.id.in_(bindparam("groups", expanding=True)))
_UNSETTLED = select(g.state, func.count().label("n")).where(g.state.in_(("claimed", "open"))).group_by(g.state)
_LATE = select(g.id, g.deadline).where(g.state == "claimed").order_by(g.deadline, g.id).limit(3)
_EXPLORERS_ALIVE = select(func.count()).where(schema.processes.c.role == "explorer", schema.processes.c.alive)


@dataclass(frozen=True)
class LeasedBatch:
    """A leased batch, in its order.

    Attributes:
        step: the step that trains it.
        group_ids: ids of its groups.
        groups: trained for the first time.
        reused: trained before, and now again.
        demonstrations: positions of the demonstrations that are trained with it.
    """

    step: int
    group_ids: tuple[int, ...]
    groups: tuple[Group, ...]
    reused: tuple[Group, ...] = ()
    demonstrations: range = range(0)


@dataclass(frozen=True)
class NoBatchYet:
    """Reason why there is no batch yet.

    Attributes:
        kind: ``explorer`` (nobody generates what is left), ``generation`` (too few groups), ``stragglers`` or ``data``
            (exhausted).
        reason: the same for people, with names and numbers.
        ready: groups that are ready.
        progress: changes whenever a process makes progress: groups ready, claims made, tokens sampled.
        over: no batch will ever come.
        filtered: groups in a row that were filtered, up to now.
        compiling: engines that compile a program, and sample nothing meanwhile.
    """

    kind: str
    reason: str
    ready: int
    over: bool = False
    progress: tuple[float, ...] = ()
    filtered: FilteredStreak | None = None
    compiling: int = 0

    def __str__(self) -> str:
        """Returns the reason, the tokens so far, and whether engines compile: a first group may take minutes, and they
        show that it is slow and not stuck.
        """
        if not self.progress:
            return self.reason
        tokens = self.progress[-1]
        # Tokens are known as of the last heartbeat: where there are groups already, there have been some.
        starting = self.kind == "generation" and not (tokens or self.ready or self.filtered)
        made = "no token yet: an engine starts and compiles first" if starting else f"{tokens:,.0f} tokens so far"
        if self.compiling and not starting:
            made += " · an engine compiles" if self.compiling == 1 else f" · {self.compiling} engines compile"
        return f"{self.reason} · {made}"


@writes
def begin_lineage(tx: Transaction, from_version: int, life: str | None = None) -> int:
    """Starts a life of the learner from the checkpoint of ``from_version``; returns its number.

    ``life`` is the token of the process, as of `rljax.ledger.processes.register`: one that was replaced while it
    started must not take over from its own successor. None where no process is registered.

    Batches trained after that version are ready again; groups with a token of a later version are retired and their
    tasks reopened, as are open claims that may hold such tokens; later versions and their validations are withdrawn.
    Nothing can be claimed until the learner announces ``from_version`` anew.

    Raises:
        LedgerError: a batch that must be trained again is no longer kept.
        StaleWriterError: the process has been replaced.
    """
    if life is not None:
        check_life(tx, life)
    row = run_row(tx)
    if from_version < row.pruned:
        raise LedgerError(
            f"checkpoint {from_version} is older than the batches kept (from step {row.pruned} on); "
            "restore a newer checkpoint, or choose another run_dir"
        )
    if from_version > row.trained:
        raise LedgerError(
            f"checkpoint {from_version} is ahead of the ledger, which saw {row.trained} batches; "
            "the ledger and the checkpoints are not of the same run"
        )
    again = or_(g.state == "leased", (g.state == "trained") & (g.step >= from_version))
    tx.execute(update(schema.groups).where(again).values(state="ready", step=None, position=None))
    retired = _retire_lost(tx, from_version)
    v, a = schema.versions.c, schema.validations.c
    lost_versions = tx.execute(select(func.count()).where(v.version > from_version, ~v.withdrawn)).scalar_one()
    if lost_versions:
        tx.execute(update(schema.groups).where(g.state == "claimed").values(state="open"))
        tx.execute(update(schema.versions).where(v.version > from_version).values(withdrawn=True))
    tx.execute(delete(schema.validations).where(a.version > from_version))
    lineage = row.lineage + 1
    values = {"id": lineage, "from_version": from_version, "started_at": tx.now(), "retired": retired}
    tx.execute(insert(schema.lineages).values(values))
    if retired or row.trained > from_version:
        redone = row.trained - from_version
        message = f"lineage {lineage} from version {from_version}: {redone} steps redone, {retired} groups retired"
        record_event(tx, "trainer", "restart", message)
    fresh = {"leasing": False, "announced": -1, "announced_lineage": -1, "failure": None}
    unended = {"finished": False, "ended_epochs": None}
    tx.execute(update(schema.run).values(lineage=lineage, trained=from_version, **fresh, **unended))
    return lineage


@reads
def retired_by(tx: Transaction, lineage: int) -> int:
    """Returns how many groups the start of a lineage retired."""
    started = schema.lineages.c
    return int(tx.execute(select(started.retired).where(started.id == lineage)).scalar_one())


def _retire_lost(tx: Transaction, from_version: int) -> int:
    lost = select(g.id).where(g.state == "ready", g.max_version > from_version)
    ids = [r.id for r in tx.execute(lost)]
    discard_payloads(tx, ids)
    for start in range(0, len(ids), 500):
        where = g.id.in_(ids[start : start + 500])
        tx.execute(update(schema.groups).where(where).values(state="open", retired=g.retired + 1))
    return len(ids)


@reads
def survives(tx: Transaction, lineage: int, version: int) -> bool:
    """Returns whether the weights that ``lineage`` had after ``version`` batches are part of the living history.

    A replaced learner that has not noticed may still write a checkpoint; no later lineage grew out of it.
    """
    later = schema.lineages.c
    lost = select(later.id).where(later.id > lineage, later.from_version < version).limit(1)
    return tx.execute(lost).first() is None


@writes
def lease(tx: Transaction, lineage: int) -> LeasedBatch | NoBatchYet:
    """Leases the next batch, most urgent groups first, once the others can still be trained in time.

    Groups that `reusable` names are trained again beside it: they take no place of a group that has a deadline to meet,
    so that what may be claimed and when is the same as without them.

    Ties go by the task's first claim: a task that was claimed again after a death keeps its place, so that a batch is
    in the same order as without it (promise P11).

    Raises:
        StaleWriterError: a newer lineage lives.
        RunFailedError: the run has failed.
    """
    row = require_living(tx, lineage)
    step = row.trained
    if row.leasing:
        return _load(tx, step, [c.id for c in tx.execute(_LEASED)] + reusable(tx, step))
    chosen, missing = next_batch(tx, row)
    if missing is not None:
        if missing.over:
            left = update(schema.groups).where(g.state == "ready")
            tx.execute(left.values(state="dropped", reason="end_of_data"))
        return missing
    batch = [{"chosen": c.id, "state": "leased", "step": step, "position": i} for i, c in enumerate(chosen)]
    if batch:  # of demonstrations alone there is none
        tx.execute(_LEASE, batch)
    tx.execute(_SET_RUN, {"leasing": True})
    return _load(tx, step, [c.id for c in chosen] + reusable(tx, step))


@writes
def mark_trained(tx: Transaction, lineage: int, step: int, publishes: bool, demonstrations: int = 0) -> None:
    """Records that the leased batch is in the weights of this lineage, and so many demonstrations with it.

    Raises:
        StaleWriterError: a newer lineage lives, or this step is not the leased one.
    """
    row = require_living(tx, lineage)
    if not row.leasing or row.trained != step:
        raise StaleWriterError(f"step {step} is not leased; the ledger is at step {row.trained}")
    ids = [r.id for r in tx.execute(_LEASED)] + reusable(tx, step)
    counts = {r.id: r.version_counts for r in tx.execute(_VERSION_COUNTS, {"groups": ids})}
    of_step = {"lineage": lineage, "step": step}
    batch = [{**of_step, "position": i, "group_id": n, "version_counts": counts[n]} for i, n in enumerate(ids)]
    if batch:
        tx.execute(insert(schema.batches), batch)
    values = {"lineage": lineage, "step": step, "publishes": publishes, "trained_at": tx.now()}
    tx.execute(insert(schema.steps).values({**values, "demonstrations": demonstrations}))
    tx.execute(update(schema.groups).where(g.state == "leased").values(state="trained"))
    tx.execute(_SET_RUN, {"trained": step + 1, "leasing": False})


@writes
def prune_payloads(tx: Transaction, lineage: int, before_step: int) -> None:
    """Deletes the payloads of batches that no kept checkpoint needs: those of steps before ``before_step``, unless a
    later one may still reuse them.
    """
    row = require_living(tx, lineage)
    # Of earlier steps nothing is left. Each condition is a range of an index: none looks at all that was ever trained,
    # as one on state and step would, where the planner takes the state for the rarer of the two.
    if tx.spec.max_uses == 1:
        old = select(g.id, g.state).where(g.step >= row.pruned, g.step < before_step)
    else:
        old = select(g.id, g.state).where(g.state == "trained", g.deadline >= row.pruned, g.deadline < before_step)
    discard_payloads(tx, [r.id for r in tx.execute(old) if r.state == "trained"])
    tx.execute(update(schema.run).where(schema.run.c.pruned < before_step).values(pruned=before_step))


@writes
def finish(tx: Transaction, lineage: int) -> None:
    """Marks the run as finished: explorers stop."""
    row = require_living(tx, lineage)
    ended_epochs = tx.spec.total_epochs if row.trained < tx.spec.max_steps else None
    tx.execute(update(schema.run).values(finished=True, ended_epochs=ended_epochs))


@writes
def fail_run(tx: Transaction, lineage: int, message: str) -> None:
    """Records why the learner cannot go on; every process stops on it. ``lineage`` 0: it had not begun.

    Raises:
        StaleWriterError: another learner has taken over, and the run goes on with it.
    """
    if lineage:
        check_lineage(run_row(tx), lineage)
    record_failure(tx, "trainer", message)


@reads
def recorded_batches(tx: Transaction, from_step: int, to_step: int) -> list[LeasedBatch]:
    """Returns the surviving batches of steps ``from_step`` to ``to_step`` (exclusive), to train again (promise P13).

    Raises:
        LedgerError: their payloads are no longer kept.
    """
    if from_step < run_row(tx).pruned:
        raise LedgerError(f"the batches before step {run_row(tx).pruned} are no longer kept; replay from there on")
    found = []
    for step in range(from_step, to_step):
        rows = tx.execute(select(b.group_id).where(b.step == step, _survives()).order_by(b.position))
        found.append(_load(tx, step, [r.group_id for r in rows]))
    return found


def reusable(tx: Transaction, step: int) -> list[int]:
    """Returns the groups that a step trains again: of those trained fewer than ``max_uses`` times, whose deadline has
    not passed, at most ``reused_groups``. The least used come first, of these the newest claims, then in claim order:
    what is far off the policy is left for when there is nothing nearer, as in Trinity-RFT's priority (version −
    decay·uses).

    It depends on nothing that happens between the lease of a step and its end, so that it need not be stored.
    """
    if not tx.spec.reused_groups:
        return []
    uses = func.count().label("uses")
    trained = select(g.id, uses).join_from(schema.groups, schema.batches, b.group_id == g.id)
    used = trained.where(g.state == "trained", g.deadline >= step, b.step < step, _survives())
    order = used.group_by(g.id, g.deadline).having(uses < tx.spec.max_uses).order_by(uses, g.deadline.desc(), g.id)
    return [r.id for r in tx.execute(order.limit(tx.spec.reused_groups))]


def _survives() -> ColumnElement[bool]:
    """Returns the condition that a row of `batches` is of a step that no later lineage has undone."""
    later = schema.lineages.c
    return ~exists(select(later.id).where(later.id > b.lineage, later.from_version <= b.step))


@reads
def check_living(tx: Transaction, lineage: int) -> None:
    """Calls `require_living` in a transaction of its own."""
    require_living(tx, lineage)


def require_living(tx: Transaction, lineage: int) -> Row:
    """Returns the run's row, if ``lineage`` is still the living one.

    Raises:
        StaleWriterError: another lineage is.
        RunFailedError: the run has failed.
    """
    row = run_row(tx)
    check_lineage(row, lineage)
    if row.failure:
        raise RunFailedError(row.failure)
    return row


def _load(tx: Transaction, step: int, ids: Sequence[int]) -> LeasedBatch:
    data = {r.group_id: r.data for r in tx.execute(_PAYLOADS, {"groups": ids})}
    missing = [i for i in ids if i not in data]
    if missing:
        raise LedgerError(f"step {step}: the trajectories of groups {missing[:5]} are missing from the ledger")
    groups, new = tuple(_decoded(tx, i, data[i]) for i in ids), tx.spec.batch_groups
    return LeasedBatch(step, tuple(ids), groups[:new], groups[new:], tx.spec.demonstrated_at(step))


def _decoded(tx: Transaction, group_id: int, payload: bytes) -> Group:
    try:
        return decode(payload)
    except ValueError as error:
        message = f"{tx.db.label}: the trajectories of group {group_id} are damaged ({error})"
        raise LedgerError(f"{message}; put a copy of the ledger back, or choose another run_dir") from error


def next_batch(tx: Transaction, row: Row) -> tuple[Sequence[Row], NoBatchYet | None]:
    """Returns the groups of the next batch, or why there is none yet."""
    size, step = tx.spec.batch_groups, row.trained
    chosen = tx.execute(_READY, {"size": size}).all()
    if len(chosen) < size:
        return chosen, _with_progress(tx, row, _end_or_wait(tx, row, len(chosen)))
    rest, _ = in_flight(tx)
    for c in chosen:
        rest[c.deadline] -= 1
    if not feasible(rest, step + 1, size):
        return chosen, _with_progress(tx, row, _stragglers(tx, step, size))
    return chosen, None


def _with_progress(tx: Transaction, row: Row, found: NoBatchYet) -> NoBatchYet:
    """Adds to ``found`` who validates, and counters that change while any process makes progress."""
    if found.over:
        return found
    who = validating(tx)
    reason = found.reason + ("" if who is None else "; {1} validates version {0}".format(*who))
    gauges = sum_of_gauges(tx, "explorer")
    progress, compiling = (found.ready, row.claims, gauges.get("tokens", 0.0)), int(gauges.get("compiling", 0.0))
    return replace(found, reason=reason, progress=progress, compiling=compiling)


def _end_or_wait(tx: Transaction, row: Row, ready: int) -> NoBatchYet:
    size = tx.spec.batch_groups
    busy = {row.state: row.n for row in tx.execute(_UNSETTLED)}
    alive = tx.execute(_EXPLORERS_ALIVE).scalar_one()
    if not busy and _exhausted(tx, tx.spec.total_epochs):
        return NoBatchYet("data", "the tasksets are exhausted", ready, over=True)
    if not alive:
        reason = f"an explorer: {ready} of {size} groups ready and none is here yet; with mode=train start one"
        return NoBatchYet("explorer", reason, ready)
    if "claimed" not in busy and (nobody := unserved(tx, tx.spec.total_epochs)):
        return NoBatchYet("explorer", f"groups: {ready} of {size} ready; {nobody}", ready)
    reason = f"groups: {ready} of {size} ready{describe_untrained(tx, row.trained)}"
    return NoBatchYet("generation", reason, ready, filtered=filtered_streak(tx, row.trained))


def _exhausted(tx: Transaction, total_epochs: int | None) -> bool:
    if total_epochs is None:
        return False
    sets = tx.execute(select(schema.tasksets)).all()
    return bool(sets) and all(s.issued >= s.size * total_epochs for s in sets)


def _stragglers(tx: Transaction, step: int, ready: int) -> NoBatchYet:
    names = ", ".join(f"group {r.id} (due at step {r.deadline})" for r in tx.execute(_LATE))
    return NoBatchYet("stragglers", f"stragglers that would come too late after step {step}: {names}", ready)
