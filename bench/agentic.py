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
import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.paired import print_machine, print_table
from rljax.ledger.run_spec import RunSpec
from rljax.pipeline.simulate.schedule import Schedule, simulate
from rljax.pipeline.simulate.workload import Attempts, constant

ENVIRONMENTS, TURNS, TOKENS, BATCH = 1024, 10, 4, 256
GROUP_SIZE = 8
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


def environment_seconds(rng: random.Random) -> float:
    """Draws the seconds that an environment takes for a turn."""
    seconds = max(0.1, rng.gauss(10.0, 5.0))
    return seconds * 20.0 if rng.random() < 1 / 500 else seconds


def run(case: Case, steps: int) -> dict[str, float]:
    """Runs one case; returns a row of figures."""
    begin = time.perf_counter()
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
    schedule = Schedule(
        spec,
        Attempts(constant(TURNS), constant(TOKENS), environment_seconds),
        rate=lambda running: running * TOKENS / ENGINE_SECONDS,
        train_seconds=lambda _: TRAIN_SECONDS,
        capacity=ENVIRONMENTS // GROUP_SIZE * (GROUP_SIZE + case.redundancy),
        redundancy=case.redundancy,
        load_seconds=LOAD_SECONDS,
    )
    outcome = simulate(schedule)
    for step in outcome.steps:
        if [len(group.trajectories) for group in step.batch.groups] != [GROUP_SIZE] * spec.batch_groups:
            raise RuntimeError(f"step {step.batch.step}: a batch of another size")
    ends = [step.ended for step in outcome.steps]
    return {
        "s/batch": float(np.mean(np.diff(ends)[SETTLING - 1 :])),
        "max staleness": float(outcome.audit["max_staleness"]),
        "real s": time.perf_counter() - begin,
    }


def barrier(environments: int, batches: int) -> float:
    """Returns the seconds that so many environments in lockstep take for ten turns, on average."""
    rng = random.Random(0)
    whole = [
        sum(ENGINE_SECONDS + max(environment_seconds(rng) for _ in range(environments)) for _ in range(TURNS))
        for _ in range(batches)
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
