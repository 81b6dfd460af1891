"""Schedules that others have published, by the planner's simulation: the real explorer, scheduler and ledger.

    python -m bench.schedules [--quick] [--only environments intervals staleness]

environments: a batch of 256 episodes (32 groups of 8) of 10 turns, on policy. A turn takes the engine 1 s and the
environment N(10, 1) or N(10, 10) seconds, at least 0. Turn by turn, all environments wait for the slowest after each
turn, as a vector environment's do (computed, not run: the sum over the turns of the largest latency); else each goes on
by itself. ROLL has published that the gain grows with the spread.

intervals: a step trains in 1 s, generates in 0.33 and publishes in 0.3, which two of the speed-ups that Trinity-RFT has
published give by hand (`tests/rollout/test_intervals_virtual.py`); the others are what the schedule makes of them.

staleness: 100 updates of a run on 40 devices, published with 0 to 4 steps of staleness; here 16 groups of 8 a step.
Neither its lengths nor its speeds are known: T, the spread of the lengths and how far the engines were saturated are
chosen so that the five come out as near as they do; the time of generating follows from the first. α and S are the
staleness.

Nothing is discarded: every run checks that the ledger balances with no group dropped, and that no token is staler than
S.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from bench.paired import print_machine, print_table
from rljax.ledger.run_spec import RunSpec
from rljax.pipeline.simulate.schedule import Outcome, Schedule, simulate
from rljax.pipeline.simulate.workload import Attempts, constant, lognormal, normal

TURNS, GROUP_SIZE, GROUPS, ENGINE_SECONDS = 10, 8, 32, 1.0
TRAINING, GENERATING, PUBLISHING = 1.0, 0.33, 0.3
INTERVALS = {  # speed-up over every step in turn: published by Trinity-RFT, Qwen2.5-1.5B on GSM8K; α and k
    "every step": (1.0, 0.0, 1),
    "every 2": (1.24, 0.0, 2),
    "every 10": (1.59, 0.0, 10),
    "one step off": (1.25, 1.0, 1),
    "asynchronous": (1.61, 10.0, 10),
}
STALENESS = (6235.0, 4360.0, 3544.0, 3142.0, 2942.0)
"""Seconds of 100 updates with a staleness of 0, 1, 2, 3, 4."""
UPDATES, MEAN = 100, 32.0
SPREAD, SATURATION, TRAIN_SECONDS = 0.7, 4.0, 18.0
"""Standard deviation of the lengths as a share of their mean; by how much a batch of requests slows a decoding step
down, as a share of that of one; seconds to train a batch.
"""


def spec(alpha: float, interval: int = 1, steps: int = 24, groups: int = GROUPS, *, fill: bool = False) -> RunSpec:
    """Returns the settings of a run with the least S."""
    return RunSpec(
        seed=0,
        group_size=GROUP_SIZE,
        batch_groups=groups,
        alpha=alpha,
        staleness_bound=int(alpha) + interval - 1,
        sync_interval=interval,
        max_steps=steps,
        total_epochs=None,
        claim_timeout=60.0,
        fill_interval=fill,
    )


def whole(schedule: Schedule) -> Outcome:
    """Simulates a run that discards nothing.

    Raises:
        RuntimeError: it did.
    """
    outcome = simulate(schedule)
    lost = {**outcome.audit["dropped"], **outcome.audit["filtered"]}
    if lost:
        raise RuntimeError(f"{schedule.spec}: {lost} groups discarded")
    return outcome


def environments(steps: int) -> list[list[object]]:
    """Returns rows of spread, seconds to a batch turn by turn and environment by environment, and their ratio."""
    rows: list[list[object]] = []
    for deviation in (1.0, 10.0):
        latency, rng, size = normal(10.0, deviation), random.Random(0), GROUP_SIZE * GROUPS
        turn = [ENGINE_SECONDS + max(latency(rng) for _ in range(size)) for _ in range(TURNS * 50)]
        lockstep = TURNS * sum(turn) / len(turn)
        attempts = Attempts(constant(TURNS), constant(1), latency)
        seconds = []
        for alpha in (0.0, 1.0):
            schedule = Schedule(spec(alpha, steps=steps), attempts, lambda n: n / ENGINE_SECONDS, lambda _: 0.0)
            seconds.append(whole(schedule).steps[-1].ended / steps)
        rows.append([f"N(10, {deviation:g})", lockstep, *seconds, *(lockstep / each for each in seconds)])
    return rows


def intervals(steps: int) -> list[list[object]]:
    """Returns rows of a schedule: speed-up that was published and ours, largest staleness."""
    rows: list[list[object]] = []
    first = 0.0
    for name, (published, alpha, interval) in INTERVALS.items():
        schedule = Schedule(
            spec(alpha, interval, steps, groups=2, fill=True),
            Attempts(constant(1), constant(1)),
            lambda n: n / GENERATING,
            lambda _: TRAINING,
            publish_seconds=PUBLISHING,
        )
        outcome = whole(schedule)
        seconds = outcome.steps[-1].ended
        first = first or seconds
        rows.append([name, alpha, interval, published, first / seconds, outcome.audit["max_staleness"]])
    return rows


def staleness(steps: int) -> list[list[object]]:
    """Returns rows of a staleness: seconds of 100 updates that were published and ours, and what was seen of it."""

    def seconds(alpha: int, training: float, unit: float) -> tuple[float, Outcome]:
        size, before = GROUP_SIZE * GROUPS // 2, alpha + 2  # the pipeline fills
        rate: Callable[[int], float] = lambda n: n / (1 + SATURATION * n / size) / unit  # noqa: E731
        lengths = lognormal(MEAN, MEAN * SPREAD, 6 * MEAN)
        endless = spec(alpha, steps=10**6, groups=GROUPS // 2)
        attempts, last = Attempts(constant(1), lengths), steps + before + 1
        outcome = whole(Schedule(endless, attempts, rate, lambda _: training, stop_after=last))
        return (outcome.steps[-1].ended - outcome.steps[before].ended) / steps, outcome

    generating, _ = seconds(0, 0.0, 1.0)
    unit = (STALENESS[0] / UPDATES - TRAIN_SECONDS) / generating
    rows: list[list[object]] = []
    for bound, published in enumerate(STALENESS):
        step, outcome = seconds(bound, TRAIN_SECONDS, unit)
        ours = UPDATES * step
        rows.append(
            [bound, round(published), round(ours), f"{ours / published - 1:+.1%}", outcome.audit["max_staleness"]]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the steps")
    parser.add_argument("--only", nargs="+", choices=("environments", "intervals", "staleness"))
    options = parser.parse_args()
    print_machine()
    tables: dict[str, tuple[Callable[[int], list[list[object]]], int, tuple[str, ...]]] = {
        "environments": (
            environments,
            6,
            ("seconds a turn", "turn by turn", "each by itself", "α = 1", "gain", "gain at α = 1"),
        ),
        "intervals": (intervals, 40, ("schedule", "α", "k", "published", "ours", "max staleness")),
        "staleness": (staleness, 24, ("staleness", "published s", "ours s", "off by", "max staleness")),
    }
    for name in options.only or tables:
        rows, steps, header = tables[name]
        begin = time.process_time()
        found = rows(max(steps // 3, 8) if options.quick else steps)
        print_table(f"{name} ({time.process_time() - begin:.0f} s of CPU)", header, found)


if __name__ == "__main__":
    main()
