"""Wall time gained by generating ahead: α = 1 against α = 0, learner and sidecar on a core each.

    python -m bench.async_speedup [--quick] [--rounds N] [--config.KEY=VALUE ...]

What: the real program (``python -m rljax.main``) on `bench/async_config.py`: a random transformer of 1.6M parameters
answers 64 prompts a batch with up to 64 tokens; learning rate 1e-6, so that lengths stay. The learner's process
(with explorer and scheduler) is pinned to the first core, the engine (``sidecar.engine=vllm``, one thread) to the
second. Each round runs α = 0, α = 1 with the least S, and S one more with α = 1 and with α = 2; their order turns from
round to round.

G and T are ``time/engine_busy`` and ``time/train`` of a step at α = 0, on average over the steps behind the first few,
in which programs are compiled. bound = (G + T) / max(G, T) is how much faster another α can be; speed-up is the seconds
of a step at α = 0 over those of the run, "of the bound" the one over the other. The last column is less kind:
max(G, T) over the seconds of a step, so that what both runs waste counts too.

The bound is of means. One batch ahead and no more, a step takes about the longer of what its two sides take in it, and
the mean of that is more than the longer of the means where steps are uneven. So beside G and T stands the mean of
max(T of a step, G of the next) of the same run: that of α = 0 says what uneven steps cost α = 1, and its own how much
slower both are side by side. What its step takes beyond that is ours.

Beside that, of the last round of each, the budget of a step (`rljax.observe.budget`): where each process's seconds go,
with the least step (the longer of what learner and engine do) and the bound as they would be without each part. It is
read from the traces of the runs, which they keep while they are measured.

Target: 0.9 of the bound.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.paired import print_machine, print_table
from rljax.observe.budget import Budget, budgets, removals
from rljax.observe.metrics import read_metrics
from rljax.observe.trace_read import read_spans

COMPILING = 4
"""Steps at the beginning that are not counted."""
RUNS = {
    "α = 0": ("async_generation_ratio=0.0",),
    "α = 1, S = 1": ("async_generation_ratio=1.0",),
    "α = 1, S = 2": ("async_generation_ratio=1.0", "max_staleness=2"),
    "α = 2, S = 2": ("async_generation_ratio=2.0",),
}
SYNCHRONOUS = "α = 0"
RUN_SECONDS = 1800.0
CONFIG = Path(__file__).with_name("async_config.py")


@dataclass(frozen=True)
class Means:
    """Means over the steps of one run: seconds of a step, of training, of generation, and of the longer of a step's
    training and the next one's generation.
    """

    step: float
    train: float
    busy: float
    longer: float
    tokens: float

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> Means:
        """Computes the means of the rows of a run's metrics."""
        counted = [row for row in rows if row["step"] > COMPILING]

        def mean(name: str) -> float:
            return statistics.fmean(row[name] for row in counted)

        longer = statistics.fmean(
            max(one["time/train"], after["time/engine_busy"]) for one, after in itertools.pairwise(counted)
        )
        return cls(mean("time/step"), mean("time/train"), mean("time/engine_busy"), longer, mean("tokens/trained"))


def run(directory: Path, overrides: Sequence[str]) -> tuple[Means, tuple[Budget, ...]]:
    """Runs the program once and returns its means, and the budget of a step.

    Raises:
        RuntimeError: it failed.
    """
    arguments = [f"--config.{override}" for override in (f"run_dir={directory}", *overrides)]
    done = subprocess.run(
        [sys.executable, "-m", "rljax.main", f"--config={CONFIG}", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        preexec_fn=lambda: os.sched_setaffinity(0, {0}),
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1:]}")
    rows = read_metrics(directory)
    return Means.of(rows), budgets([row for row in rows if row["step"] > COMPILING], list(read_spans(directory)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of 10 steps")
    parser.add_argument("--rounds", type=int, default=3)
    options, given = parser.parse_known_args()
    overrides = [argument.removeprefix("--config.") for argument in given]
    if options.quick:
        options.rounds, overrides = 1, ["max_steps=10", *overrides]
    print_machine()
    found: dict[str, list[Means]] = {name: [] for name in RUNS}
    spent: dict[str, tuple[Budget, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-async-") as root:
        for number in range(options.rounds):
            names = list(RUNS)[number % len(RUNS) :] + list(RUNS)[: number % len(RUNS)]
            for name in names:
                directory = Path(root) / f"run-{number}-{list(RUNS).index(name)}"
                means, spent[name] = run(directory, [*RUNS[name], *overrides])
                found[name].append(means)
                print(f"round {number}, {name}: {means}", flush=True)
    show(found)
    for name in RUNS:
        show_budget(name, spent[name])


def show(found: dict[str, list[Means]]) -> None:
    """Prints the medians over the rounds; ratios are taken within a round."""
    rows: list[list[object]] = []
    for name, all_ in found.items():
        bounds, speeds, ideal = [], [], []
        for zero, mine in zip(found[SYNCHRONOUS], all_, strict=True):
            bounds.append((zero.busy + zero.train) / max(zero.busy, zero.train))
            speeds.append(zero.step / mine.step)
            ideal.append(max(zero.busy, zero.train) / mine.step)
        fields = ("busy", "train", "longer", "step", "tokens")
        medians = [statistics.median(getattr(m, field) for m in all_) for field in fields]
        of_bound = [speed / bound for speed, bound in zip(speeds, bounds, strict=True)]
        reached = f"{statistics.median(of_bound):.2f} ({min(of_bound):.2f}–{max(of_bound):.2f})"
        rows.append([name, *medians, *map(statistics.median, (bounds, speeds)), reached, statistics.median(ideal)])
    figures = ("G", "T", "longer, by step", "s/step", "tokens", "bound", "speed-up", "of the bound", "max(G, T) / step")
    columns = ("run", *figures)
    print_table("generating ahead, a core each; seconds of a step", columns, rows)


def show_budget(name: str, found: Sequence[Budget]) -> None:
    """Prints where the time of a step went, and what it would be without each part."""
    without = {(row.process, row.part): row for row in removals(found)}
    rows: list[list[object]] = []
    for budget in found:
        for part in budget.parts:
            row = without.get((budget.process, part))
            least = ["", ""] if row is None else [row.least, row.bound]
            rows.append(
                [budget.process, part.kind, part.name, part.seconds, f"{part.seconds / budget.step:.1%}", *least]
            )
        rows.append([budget.process, "in all", "", budget.step, "100%", "", ""])
    if now := without.get(("", None)):
        rows.append(["learner, engine", "as it is", "", "", "", now.least, now.bound])
    columns = ("process", "kind", "part", "s/step", "share", "least step without", "bound without")
    print_table(f"budget of a step, {name}", columns, rows)


if __name__ == "__main__":
    main()
