"""The processes of a run: explorers, which are real but for their engines, and a learner that trains nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from multiprocessing.synchronize import Event

from bench.steady.load import DEVIATION, GROUP_SIZE, KEPT, MOST, SAVE_STEPS, TOKENS, Load, Sampled
from bench.steady.meters import CountedDatabase, Diary, Latencies, MeteredLedger, name_of
from rljax.launch.heartbeat import TrainerHeartbeat
from rljax.ledger import audit, leases, processes, validations, versions
from rljax.ledger.filtered_streak import filtered_during
from rljax.ledger.leases import LeasedBatch
from rljax.observe.report.background import ReportThread
from rljax.pipeline.simulate.engine import SimulatedEngine
from rljax.pipeline.simulate.schedule import explorer_of
from rljax.pipeline.simulate.workload import constant, lognormal
from rljax.pipeline.train import LOOK_FOR_DEAD
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.explorer import Explorer

LOAD_SECONDS = 0.05
"""Seconds that an engine stands still to load a version."""
LOOK_SECONDS = 0.2
"""Seconds between looks whether the run is to end."""


def explore(load: Load, index: int, stop: Event) -> None:
    """Runs an explorer with its share of the engines, until ``stop`` is set."""
    logging.basicConfig(level=logging.WARNING)
    name, each = f"explorer_{index}", load.engines // load.explorers
    db, latencies = load.open(), Latencies()
    diary = Diary(load.directory / f"{name}.jsonl", db, latencies)
    speed = TOKENS / load.seconds  # tokens a second of each request, however many there are

    async def start(_: int) -> SimulatedEngine:
        return SimulatedEngine(lambda running: speed * running, 10**6, LOAD_SECONDS)

    async def main() -> None:
        pool = EnginePool(start, each, load.directory, FaultLog())
        workflow = Sampled(constant(1), lognormal(TOKENS, DEVIATION, MOST))
        capacity = -(-load.in_flight // load.explorers // GROUP_SIZE) * GROUP_SIZE
        explorer = explorer_of(
            MeteredLedger(db, latencies), pool, workflow, name=name, group_size=GROUP_SIZE, capacity=capacity
        )
        watching = asyncio.ensure_future(_watch(explorer, diary, load.sample_seconds, stop))
        try:
            await explorer.run()
        finally:
            watching.cancel()

    asyncio.run(main())
    db.close()


async def _watch(explorer: Explorer, diary: Diary, seconds: float, stop: Event) -> None:
    due = 0.0
    while not stop.is_set():
        if (now := time.monotonic()) >= due:
            diary.write()
            due = now + seconds
        await asyncio.sleep(LOOK_SECONDS)
    explorer.stop()


def learn(load: Load, stop: Event) -> None:
    """Leases, waits where a learner would train, marks as trained, announces and deletes until ``stop`` is set."""
    db, latencies = load.open(), Latencies()
    diary = Diary(load.directory / "learner.jsonl", db, latencies)
    report = ReportThread(lambda: audit.audit(db))
    with contextlib.closing(TrainerHeartbeat(db)) as heartbeat, contextlib.closing(report):
        learner = _Learner(load, db, latencies, leases.begin_lineage(db, 0, heartbeat.token))
        learner.announce(0)
        due = 0.0
        while not stop.is_set():
            if (now := time.monotonic()) >= due:
                diary.write(steps=learner.steps)
                due = now + load.sample_seconds
            if learner.step():
                report.ask()
    db.close()


class _Learner:
    """Calls of the ledger, in the order of `rljax.pipeline.train.Trainer`."""

    def __init__(self, load: Load, db: CountedDatabase, latencies: Latencies, lineage: int) -> None:
        self._load = load
        self._db = db
        self._latencies = latencies
        self._lineage = lineage
        self._looked = time.monotonic()
        self.steps = 0

    def step(self) -> bool:
        """Trains the next batch; false where there is none yet, after waiting for a change."""
        seen = self._db.notifier.changes
        found = self._timed(leases.lease, self._lineage)
        if not isinstance(found, LeasedBatch):
            if time.monotonic() - self._looked > LOOK_FOR_DEAD:
                processes.mark_dead_processes(self._db)
                self._looked = time.monotonic()
            self._db.notifier.wait(seen)
            return False
        time.sleep(self._load.train_seconds)
        self._timed(leases.mark_trained, self._lineage, found.step, True)
        self.steps = found.step + 1
        self.announce(self.steps)
        filtered_during(self._db, found.step)
        versions.latest_gap(self._db)
        list(validations.take_unreported(self._db))
        if self.steps % SAVE_STEPS == 0 and (oldest := self.steps - SAVE_STEPS * (KEPT - 1)) > 0:
            self._timed(leases.prune_payloads, self._lineage, oldest)
        return True

    def announce(self, version: int) -> None:
        """Announces a version, and deletes what nobody needs any more."""
        self._timed(versions.announce, self._lineage, version, f"weights/v{version}-{self._lineage}")
        self._timed(versions.take_deletable, self._lineage)
        versions.standing(self._db)

    def _timed(self, function, *args):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        result = function(self._db, *args)
        self._latencies.add(name_of(function, result), time.perf_counter() - began)
        return result
