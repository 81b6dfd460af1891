"""Groups per second with 1, 2 and 4 explorers: what an explorer that joins a run brings.

    python -m bench.elastic [--quick] [--midway]

What: real explorers, each in a process of its own with the real scheduler, engine pool and group runner, meet in one
ledger (SQLite on disk) on this machine's own clock. Only the engines are modelled: each has 16 slots, and a request
sleeps through its tokens instead of computing them (10 ms a token; lengths are lognormal, 100 tokens on average): so
explorers do not take the cores from each other, as on machines of their own. The learner takes no time.
α = 1, groups of 8, 16 groups a batch. The clock starts when all explorers have registered.

With ``--midway`` there is one explorer, and a second one is started when half of the batches are trained. The rates are
of groups stored before the newcomer's first claim and from then on, its warming up and the end of the run included.

Target: twice and four times the rate of one explorer, less what they wait for each other at the ledger: at least 0.9.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import multiprocessing
import sqlite3
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from bench.paired import print_machine, print_table
from bench.scheduler import GROUP_SIZE, InstantEngine, learn, make_explorer
from rljax.ledger import audit, processes
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.explore import QUEUED
from sidecar.protocol import Completion, GenerateRequest

EXPLORERS = (1, 2, 4)
SLOTS = 16
TOKEN_SECONDS = 0.01
MEAN_TOKENS, SIGMA = 100, 0.5
BATCH_GROUPS = 16


class SleepingEngine(InstantEngine):
    """Sleeps for the time of a decoding engine, and computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._slots = asyncio.Semaphore(SLOTS)

    async def generate(self, request: GenerateRequest) -> Completion:
        drawn = np.random.default_rng(request.sampling.seed).lognormal(-(SIGMA**2) / 2, SIGMA)
        async with self._slots:
            await asyncio.sleep(TOKEN_SECONDS * MEAN_TOKENS * drawn)
            return await super().generate(request)


def run_spec(batches: int) -> RunSpec:
    """Returns the spec of a run of so many batches."""
    return RunSpec(
        seed=0,
        group_size=GROUP_SIZE,
        batch_groups=BATCH_GROUPS,
        alpha=1.0,
        staleness_bound=1,
        sync_interval=1,
        max_steps=batches,
        total_epochs=None,
        claim_timeout=60.0,
    )


def explore(directory: Path, name: str, spec: RunSpec) -> None:
    """Runs one explorer: the main function of its process."""
    db = Database(SqliteFile(directory / "ledger.db"), spec)
    capacity = math.ceil(QUEUED * SLOTS)
    asyncio.run(make_explorer(AsyncDatabase(db), SleepingEngine(), directory, name=name, capacity=capacity).run())


def measure(explorers: int, batches: int) -> tuple[int, float]:
    """Runs so many explorers; returns the groups and the seconds of the run."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bench-elastic-") as directory:
        spec = run_spec(batches)
        db = Database(SqliteFile(Path(directory) / "ledger.db"), spec)
        names = [f"explorer {i}" for i in range(explorers)]
        started = [context.Process(target=explore, args=(Path(directory), name, spec)) for name in names]
        for process in started:
            process.start()
        while len(processes.gauges(db, "explorer")) < explorers:
            if not all(process.is_alive() for process in started):
                raise RuntimeError("an explorer ended before it had begun")
            db.notifier.wait(db.notifier.changes)
        begin = time.perf_counter()
        asyncio.run(learn_alone(db))
        seconds = time.perf_counter() - begin
        for process in started:
            process.join()
        report = audit.audit(db)
        db.close()
    if not report["balanced"] or report["trained_twice"]:
        raise RuntimeError(f"the ledger does not balance: {report['problems']}")
    return report["trained"], seconds


def measure_midway(batches: int) -> list[list[object]]:
    """Returns a row of explorers, groups, seconds and groups a second, before the second one came and one after."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bench-elastic-") as name:
        directory, spec = Path(name), run_spec(batches)
        db = Database(SqliteFile(directory / "ledger.db"), spec)
        first, second = (
            context.Process(target=explore, args=(directory, name, spec)) for name in ("explorer 0", "explorer 1")
        )
        first.start()
        asyncio.run(learn_and_start(db, directory, second, batches // 2))
        for process in (first, second):
            process.join()
        report = audit.audit(db)
        db.close()
        stored = query(directory, "SELECT stored_at FROM groups WHERE state = 'trained' ORDER BY stored_at")
        ((began,),) = query(directory, "SELECT min(claimed_at) FROM groups")
        ((joined,),) = query(directory, "SELECT min(claimed_at) FROM groups WHERE explorer = 'explorer 1'")
    if not report["balanced"] or report["trained_twice"]:
        raise RuntimeError(f"the ledger does not balance: {report['problems']}")
    spans = {1: (began, joined), 2: (joined, stored[-1][0] + 1e-6)}
    counts = {n: sum(begin <= at < end for (at,) in stored) for n, (begin, end) in spans.items()}
    return [[n, counts[n], end - begin, counts[n] / (end - begin)] for n, (begin, end) in spans.items()]


async def learn_alone(db: Database) -> None:
    """Runs the learner to the end, beside explorers in processes of their own."""
    ledger = AsyncDatabase(db)
    try:
        await learn(ledger)
    finally:
        await ledger.close()


async def learn_and_start(db: Database, directory: Path, newcomer: BaseProcess, batches: int) -> None:
    """Runs the learner to the end; once so many batches are trained, starts the newcomer."""

    async def start() -> None:
        seen = db.notifier.changes
        while query(directory, "SELECT trained FROM run")[0][0] < batches:
            await db.notifier.wait_async(seen)
            seen = db.notifier.changes
        newcomer.start()

    await asyncio.gather(learn_alone(db), start())


def query(directory: Path, sql: str) -> list[tuple]:
    """Returns rows of the ledger."""
    with contextlib.closing(sqlite3.connect(f"file:{directory / 'ledger.db'}?mode=ro", uri=True, timeout=30)) as file:
        return file.execute(sql).fetchall()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the batches")
    parser.add_argument("--midway", action="store_true", help="a second explorer joins one under way")
    options = parser.parse_args()
    print_machine()
    if options.midway:
        halves = measure_midway(8 if options.quick else 32)
        print_table("a second explorer joins a run", ("explorers", "groups", "seconds", "groups/s"), halves)
        return
    rows: list[list[object]] = []
    alone = 0.0
    for explorers in EXPLORERS:
        groups, seconds = measure(explorers, 4 if options.quick else 16)
        rate = groups / seconds
        alone = alone or rate
        rows.append([explorers, groups, seconds, rate, rate / alone, rate / alone / explorers])
    columns = ("explorers", "groups", "seconds", "groups/s", "times one", "of the ideal")
    print_table("explorers that join, engines of modelled time", columns, rows)


if __name__ == "__main__":
    main()
