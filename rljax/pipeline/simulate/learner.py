"""A learner without a model: leases, takes its time, marks as trained, announces, as `rljax.pipeline.train` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass

from rljax.ledger import leases, validations, versions
from rljax.ledger.database import Database
from rljax.ledger.leases import LeasedBatch, NoBatchYet


@dataclass(frozen=True)
class TrainedStep:
    """A step as it went.

    Attributes:
        batch: what was trained.
        waited_from, leased, trained, ended: when the learner began to wait for the batch, had it, had trained it and
            had handed over what it publishes, in seconds of the ledger's clock.
    """

    batch: LeasedBatch
    waited_from: float
    leased: float
    trained: float
    ended: float


async def learn(
    db: Database,
    seconds: Callable[[LeasedBatch], float],
    publishing: float = 0.0,
    validate: Set[int] = frozenset(),
    between: float = 0.0,
    ended: Callable[[TrainedStep], None] = lambda _: None,
    stop_after: int | None = None,
    announcing: float = 0.0,
) -> list[TrainedStep]:
    """Trains to the end, and waits for the validations; or stops before, as one that is interrupted.

    Args:
        db: the ledger.
        seconds: that it takes to train a batch.
        publishing: seconds more for a version, in which it trains nothing.
        validate: the versions that are validated.
        between: seconds of a step in which it does something else.
        ended: is told of each step.
        stop_after: steps after which it stops; None: at the end alone.
        announcing: seconds from then until it is announced, beside the next step: one version at a time.
    """
    lineage = leases.begin_lineage(db, 0)
    versions.announce(db, lineage, 0, "weights/v0", validate=0 in validate)
    steps: list[TrainedStep] = []
    under_way = asyncio.ensure_future(_pass(0.0))

    async def announce(version: int) -> None:
        await _pass(announcing)
        versions.announce(db, lineage, version, f"weights/v{version}", validate=version in validate)

    while len(steps) < db.spec.max_steps:
        since = db.clock()
        batch = await _next_batch(db, lineage)
        if batch is None:
            break
        leased, version = db.clock(), batch.step + 1
        await asyncio.sleep(seconds(batch))
        publishes = version % db.spec.sync_interval == 0 or version in validate or version == db.spec.max_steps
        leases.mark_trained(db, lineage, batch.step, publishes=publishes)
        trained = db.clock()
        if publishes:
            await under_way
            await _pass(publishing)
            if announcing:
                under_way = asyncio.ensure_future(announce(version))
            else:
                await announce(version)
        await _pass(between)
        steps.append(TrainedStep(batch, since, leased, trained, db.clock()))
        ended(steps[-1])
        if len(steps) == stop_after:
            await under_way
            return steps
    await under_way
    while validations.unfinished(db):
        await db.notifier.wait_async(db.notifier.changes)
    leases.finish(db, lineage)
    return steps


async def _next_batch(db: Database, lineage: int) -> LeasedBatch | None:
    while True:
        seen = db.notifier.changes
        found = leases.lease(db, lineage)
        if not isinstance(found, NoBatchYet):
            return found
        if found.over:
            return None
        await db.notifier.wait_async(seen)


async def _pass(seconds: float) -> None:
    if seconds > 0.0:  # a sleep of 0 would let others in between
        await asyncio.sleep(seconds)
