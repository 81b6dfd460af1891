"""A thousand environments without a barrier: seconds to a batch, against turns in lockstep, under a virtual clock.

    python -m bench.agentic [--quick] [--steps N] [--redundancy N ...]

What: the real explorer, group runner, engine pool and ledger (SQLite) on an event loop whose clock jumps to what is due
next; 1024 environments of 10 turns. An environment takes N(10, 5) seconds a turn (at least 0.1), one turn in 500 takes
20 times as long; the engine takes 0.5 seconds a turn, loading a version 2, and a batch of 256 trajectories (32 groups
of 8) trains for 30. The credit (1 + α)·B is what lets environments run: with α = 3 it is all 1024 of them.

barrier: the same latencies, with 256 (or 1024) environments that wait for the slowest after each turn, as a vector
environment does; trained in turns with it (α = 0), or beside it. Computed, not run: the sum over the turns of the
largest latency.

Every run checks that each batch holds 32 whole groups, that nothing is trained twice, and that no token is staler than
S. "s/batch" is the mean over the steps behind the first three.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.paired import print_machine, print_table
from bench.scheduler import GROUP_SIZE, explorer_of
from rljax.ledger import audit, leases, versions
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.transcript import Transcript
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.seeds import stable_hash
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory
from sidecar.protocol import GenerateRequest, SamplingParams
from tests.virtual_clock import InlineExecutor, ModelledEngine, run_virtual

ENVIRONMENTS, TURNS, BATCH = 1024, 10, 256
ENGINE_SECONDS, LOAD_SECONDS, TRAIN_SECONDS = 0.5, 2.0, 30.0
SETTLING = 3
"""Steps at the beginning that are not counted."""


@dataclass(frozen=True)
class Case:
    """A row of the table: the settings of one simulated run."""

    alpha: float
    slack: int = 0  # S beyond the least
    redundancy: int = 0


CASES = (
    *(Case(alpha, slack) for alpha, slack in ((0.0, 0), (1.0, 0), (1.0, 1), (1.0, 3), (3.0, 0), (3.0, 1), (3.0, 3))),
    *(Case(alpha, slack, 1) for alpha, slack in ((0.0, 0), (1.0, 0), (1.0, 1), (3.0, 0))),
)


def latency(*where: int | str) -> float:
    """Returns the seconds that an environment takes for a turn; the same for the same arguments."""
    rng = np.random.default_rng(stable_hash(*where))
    seconds = max(0.1, float(rng.normal(10.0, 5.0)))
    return seconds * 20.0 if rng.random() < 1 / 500 else seconds


class Episodes:
    """Workflow of ten turns of engine and environment, and a random reward."""

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        transcript = Transcript()
        transcript.add_text(np.arange(4, dtype=np.int32))
        for turn in range(TURNS):
            seed = attempt.seed(task, turn)
            name = f"{task.id}/{attempt.member}/{attempt.retry}/{turn}"
            sampling = SamplingParams(max_new_tokens=4, seed=seed)
            request = GenerateRequest(name, transcript.row, sampling, min_version=attempt.min_version)
            transcript.add_reply(await pool.generate(request, attempt.lineage))
            await asyncio.sleep(latency("environment", seed))
            transcript.add_text(np.arange(2, dtype=np.int32))
        return Trajectory(**transcript.columns(), reward=float(attempt.seed(task, -1) % 2), member=attempt.member)


def run(case: Case, steps: int) -> dict[str, float]:
    """Runs one case; returns a row of figures."""
    spec = RunSpec(
        seed=0,
        group_size=GROUP_SIZE,
        batch_groups=BATCH // GROUP_SIZE,
        alpha=case.alpha,
        staleness_bound=int(np.ceil(case.alpha)) + case.slack,
        sync_interval=1,
        max_steps=steps,
        total_epochs=None,
        claim_timeout=60.0,
    )
    with tempfile.TemporaryDirectory(prefix="bench-agentic-") as directory:
        return run_virtual(lambda loop: _run(case, spec, loop, Path(directory)))


async def _run(case: Case, spec: RunSpec, loop: Any, directory: Path) -> dict[str, float]:
    begin = time.perf_counter()
    db = Database(SqliteFile(directory / "ledger.db"), spec, clock=loop.time)
    engine = ModelledEngine(lambda _: ENGINE_SECONDS, load_seconds=LOAD_SECONDS)

    async def start(_: int) -> Any:
        return engine

    ledger = AsyncDatabase(db, InlineExecutor())
    pool = EnginePool(start, 1, directory, FaultLog())
    capacity = ENVIRONMENTS // GROUP_SIZE * (GROUP_SIZE + case.redundancy)
    explorer = explorer_of(ledger, pool, Episodes(), name="explorer", capacity=capacity, redundancy=case.redundancy)
    exploring = asyncio.ensure_future(explorer.run())
    ends = await _learn(db, loop)
    await exploring
    balance = audit.audit(db)
    db.close()
    if not balance["balanced"] or balance["trained_twice"] or balance["max_staleness"] > spec.staleness_bound:
        raise RuntimeError(f"{case}: {balance}")
    return {
        "s/batch": float(np.mean(np.diff(ends)[SETTLING - 1 :])),
        "max staleness": float(balance["max_staleness"]),
        "real s": time.perf_counter() - begin,
    }


async def _learn(db: Database, loop: Any) -> list[float]:
    lineage = leases.begin_lineage(db, 0)
    ends: list[float] = []
    versions.announce(db, lineage, 0, "weights/v0")
    while len(ends) < db.spec.max_steps:
        seen = db.notifier.changes
        found = leases.lease(db, lineage)
        if isinstance(found, leases.NoBatchYet):
            await db.notifier.wait_async(seen)
            continue
        if [len(group.trajectories) for group in found.groups] != [GROUP_SIZE] * db.spec.batch_groups:
            raise RuntimeError(f"step {found.step}: a batch of another size")
        await asyncio.sleep(TRAIN_SECONDS)
        leases.mark_trained(db, lineage, found.step, publishes=True)
        versions.announce(db, lineage, found.step + 1, f"weights/v{found.step + 1}")
        ends.append(loop.time())
    leases.finish(db, lineage)
    return ends


def barrier(environments: int, batches: int) -> float:
    """Returns the seconds that so many environments in lockstep take for ten turns, on average."""
    whole = [
        sum(
            ENGINE_SECONDS + max(latency("barrier", batch, turn, env) for env in range(environments))
            for turn in range(TURNS)
        )
        for batch in range(batches)
    ]
    return float(np.mean(whole))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 steps of three cases")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--redundancy", nargs="+", type=int, default=(0, 1), help="only the cases with so many")
    options = parser.parse_args()
    print_machine()
    steps, cases = (8, CASES[:3]) if options.quick else (options.steps, CASES)
    cases = tuple(case for case in cases if case.redundancy in options.redundancy)
    lockstep = {n: barrier(n, 3 if options.quick else 10) for n in (BATCH, ENVIRONMENTS)}
    turns = lockstep[BATCH] + LOAD_SECONDS + TRAIN_SECONDS
    beside = lockstep[ENVIRONMENTS] / (ENVIRONMENTS // BATCH)
    rows: list[list[Any]] = [
        ["barrier, 256, in turns", 0, "", "", round(turns, 1), 1.0, ""],
        ["barrier, 1024, beside", 3, "", "", round(max(beside, TRAIN_SECONDS), 1), round(turns / beside, 2), ""],
    ]
    for case in cases:
        got = run(case, steps)
        bound = int(np.ceil(case.alpha)) + case.slack
        rows.append(
            [
                f"no barrier, redundancy {case.redundancy}",
                case.alpha,
                bound,
                int(got["max staleness"]),
                round(got["s/batch"], 1),
                round(turns / got["s/batch"], 2),
                round(got["real s"], 1),
            ]
        )
        print(rows[-1], flush=True)
    header = ["environments", "α", "S", "max staleness", "s/batch", "times the first", "real s"]
    print_table("seconds to a batch of 256 episodes of 10 turns", header, rows)


if __name__ == "__main__":
    main()
