"""Explorer, scheduler and ledger alone: trajectories per second when engine and learner take no time.

    python -m bench.scheduler [--quick] [--profile]

What: the real explorer, group runner, engine pool and ledger (SQLite on disk, on its thread) on one event loop in real
time, with an engine that answers within a few turns of the loop and a learner that leases every batch and marks it
trained at once. α = 1 and groups of 8; the batch size is set so that the credit lets 64, 512 or 4096 trajectories be in
flight. The last are two claims, and of those of the first many are answered before the second is made.

Target: the scheduler adds no measurable cost, so the rate must not fall as more are in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.paired import print_machine, print_table
from rljax.ledger import audit, leases, versions
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.simulate.schedule import explorer_of
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.explorer import Explorer
from rljax.rollout.workflows.single_turn import assemble
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory
from sidecar.protocol import (
    NOTHING,
    Completion,
    EngineStatus,
    GenerateRequest,
    PauseMode,
    SamplingParams,
    WeightUpdate,
)

GROUP_SIZE = 8
TOKENS = 32
IN_FLIGHT = (64, 512, 4096)
TURNS = 8
"""Turns of the event loop that an answer takes, besides the wait for the version that it needs."""


class InstantEngine:
    """Answers every request within a few turns of the event loop."""

    def __init__(self) -> None:
        self._version = self._lineage = -1
        self._running = 0
        self._loaded = asyncio.Condition()
        self.most_running = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        async with self._loaded:
            await self._loaded.wait_for(lambda: self._version >= request.min_version)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._running -= 1
        n = request.sampling.max_new_tokens
        return Completion(np.zeros(n, np.int32), np.zeros(n, np.float32), np.full(n, self._version, np.int32), "length")

    async def progress(self, request_id: str, seen: int) -> Completion:
        return NOTHING

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Does nothing: no request is ever left to abort."""

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        return np.zeros(len(token_ids) - 1, np.float32)

    async def update_weights(self, update: WeightUpdate) -> None:
        async with self._loaded:
            self._version, self._lineage = update.version, update.lineage
            self._loaded.notify_all()

    async def pause(self, mode: PauseMode) -> None:
        """Does nothing: no request is ever left to pause."""

    async def resume(self) -> None:
        """Does nothing: no request is ever left to resume."""

    async def status(self) -> EngineStatus:
        return EngineStatus(self._version, self._lineage, self._running, 0, 1, False, 0.0, 0)

    async def close(self) -> None:
        """Does nothing: the engine holds nothing."""


class NoReward:
    """Workflow of one request and a constant reward."""

    def __init__(self) -> None:
        self._prompt = np.arange(16, dtype=np.int32)

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        sampling = SamplingParams(max_new_tokens=TOKENS, seed=attempt.seed(task, 0))
        name = f"{task.id}/{attempt.member}/{attempt.retry}"
        request = GenerateRequest(name, self._prompt, sampling, min_version=attempt.min_version, affinity=str(task.id))
        completion = await pool.generate(request, attempt.lineage)
        return assemble(self._prompt, completion, attempt, sampling, float(attempt.member), {})


def run_spec(in_flight: int, trajectories: int) -> RunSpec:
    """Returns the spec of a run whose credit is so many trajectories: with α = 1, twice the batch."""
    batch_groups = in_flight // GROUP_SIZE // 2
    return RunSpec(
        seed=0,
        group_size=GROUP_SIZE,
        batch_groups=batch_groups,
        alpha=1.0,
        staleness_bound=1,
        sync_interval=1,
        max_steps=max(2, trajectories // (batch_groups * GROUP_SIZE)),
        total_epochs=None,
        claim_timeout=60.0,
    )


def make_explorer(
    ledger: AsyncDatabase,
    engine: InstantEngine,
    directory: Path,
    *,
    name: str = "explorer",
    capacity: int = IN_FLIGHT[-1],
) -> Explorer:
    """Makes an explorer with this engine alone."""

    async def start(_: int) -> InstantEngine:
        return engine

    pool = EnginePool(start, 1, directory, FaultLog())
    return explorer_of(ledger, pool, NoReward(), name=name, group_size=GROUP_SIZE, capacity=capacity)


async def learn(ledger: AsyncDatabase) -> None:
    """Leases, marks as trained and announces, without training anything."""
    lineage = await ledger.call(leases.begin_lineage, 0)
    await ledger.call(versions.announce, lineage, 0, "weights/v0")
    step = 0
    while step < ledger.spec.max_steps:
        seen = ledger.notifier.changes
        found = await ledger.call(leases.lease, lineage)
        if isinstance(found, leases.NoBatchYet):
            await ledger.notifier.wait_async(seen)
            continue
        step = found.step + 1

        def train(db: Database, step: int = step) -> None:
            leases.mark_trained(db, lineage, step - 1, publishes=True)
            versions.announce(db, lineage, step, f"weights/v{step}")

        await ledger.call(train)
    await ledger.call(leases.finish, lineage)


def measure(in_flight: int, trajectories: int, profile: cProfile.Profile | None) -> list[object]:
    """Runs one case; returns its row of the table."""
    with tempfile.TemporaryDirectory(prefix="bench-scheduler-") as name:
        db = Database(SqliteFile(Path(name) / "ledger.db"), run_spec(in_flight, trajectories))
        engine = InstantEngine()
        ledger = AsyncDatabase(db)
        explorer = make_explorer(ledger, engine, Path(name))

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(explorer.run())
                group.create_task(learn(ledger))

        if profile is not None:
            profile.enable()
        begin, cpu = time.perf_counter(), time.process_time()
        asyncio.run(main())
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
        if profile is not None:
            profile.disable()
        report = audit.audit(db)
        db.close()
    if not report["balanced"]:
        raise RuntimeError(f"the ledger does not balance: {report['problems']}")
    done = report["trained"] * GROUP_SIZE
    return [in_flight, engine.most_running, done, done / seconds, 1e6 * cpu_seconds / done]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the trajectories, 64 and 4096 in flight only")
    parser.add_argument("--profile", action="store_true", help="print where the time goes at 4096; slows it down")
    options = parser.parse_args()
    print_machine()
    sizes = (IN_FLIGHT[0], IN_FLIGHT[-1]) if options.quick else IN_FLIGHT
    profile = cProfile.Profile() if options.profile else None
    rows = [measure(n, 8_192 if options.quick else 40_960, profile if n == sizes[-1] else None) for n in sizes]
    columns = ("credit", "most in flight", "trajectories", "trajectories/s", "CPU µs each")
    print_table("explorer, scheduler and ledger alone", columns, rows)
    growth = float(str(rows[-1][3])) / float(str(rows[0][3]))
    print(f"rate at {sizes[-1]} over rate at {sizes[0]} in flight: {growth:.2f}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
