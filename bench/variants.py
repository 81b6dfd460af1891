"""Steps that each policy loss needs on the quickstart, by how far ahead of the learner its data are generated.

    python -m bench.variants [--variants NAME ...] [--alphas A ...] [--seeds N ...] [--jobs N] [--table]

What: ``configs/quickstart.py`` with each loss of `VARIANTS` at α = 0, 1, 4 and 16, three seeds; each run has one core
to itself, ``--jobs`` at a time, and is ended when the held-out score has been 0.9, or after its `STEPS`. Every run that
has ended is a line of ``bench/runs/variants.jsonl``; a run that is there is not made again, so the command may be
stopped at any time and given again. ``--table`` only prints what is there: the median of the steps and, in brackets,
the fewest and the most of the seeds; a seed that did not get there counts as more than any. The runs share what they
compile: half of the work of a short run.

A loss that bounds nothing gets the correction or the settings that stand beside it in `VARIANTS`; so do the bounds of
those that have some, ppo's in the config. They are wide, since its tokens are few and its learning rate is high.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.paired import commit, print_machine, print_table
from rljax.observe.metrics import read_metrics

CONFIG = "configs/quickstart.py"
RESULTS = Path("bench/runs/variants.jsonl")
SCORE, GOAL = "val/reverse_digits/score", 0.9
STEPS, EVERY = 160, 10
ALPHAS, SEEDS = (0, 1, 4, 16), (0, 1, 2)
LOOK_SECONDS = 0.5
CORES = len(os.sched_getaffinity(0))
TRUNCATED = {"correction.level": "token", "correction.mode": "truncate", "correction.high": 4.0}
PLAIN = {"adv_estimator": "opmd_mean", "entropy_coef": 0.1}
HELD = {"aggregation": "seq-mean-token-sum", "entropy_coef": 0.05}
# PLAIN: advantages that are not divided by a deviation are a third as large, and so is the bonus that they go with.
# HELD: the square of the log-ratio keeps the entropy up by itself; its reference must follow opmd_kimi, whose Ẑ is an
# average over the policy's own samples and not over the reference's.
VARIANTS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dapo": {"loss.clip_low": 0.8, "loss.clip_high": 3.0},
    "gspo": {"loss.clip_low": 0.5, "loss.clip_high": 1.0},
    "decoupled_ppo": {"loss.clip_low": 0.8, "loss.clip_high": 3.0},
    "tis": {"loss.high": 4.0},
    "cispo": {"loss.clip_low": 0.8, "loss.clip_high": 3.0},
    "topr": {},
    "kimi15": {},
    "sapo": {},
    "sppo": {"loss.epsilon": 3.0},
    "rec": {"loss.clip": "two-side", "loss.clip_low": 0.8, "loss.clip_high": 3.0, "loss.weight": "importance"},
    "opmd_pairwise": {"adv_estimator": "opmd_mean", "loss.tau": 0.1} | HELD,
    "opmd_kimi": {"adv_estimator": "opmd_logavgexp", "loss.tau": 0.5, "advantage.tau": 0.5, "kl.refresh_steps": 10}
    | HELD,
    "vanilla": TRUNCATED,
    "opmd": TRUNCATED | PLAIN,
    "asymre": TRUNCATED | PLAIN,
}
"""Keys of ``algorithm`` besides ``pg_variant``, by loss; what is not named is the quickstart's."""

Row = dict[str, Any]


def read(path: Path = RESULTS) -> list[Row]:
    """Returns the runs that have ended."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(rows: Sequence[Row], variants: Sequence[str], alphas: Sequence[int], seeds: Sequence[int]) -> Iterator[Row]:
    """Yields the runs that have not been made: all variants with one seed first."""
    there = {(row["variant"], row["alpha"], row["seed"]) for row in rows}
    for seed, alpha, variant in product(seeds, alphas, variants):
        if (variant, alpha, seed) not in there:
            yield {"variant": variant, "alpha": alpha, "seed": seed}


def run(case: Row, compiled: str, stop: threading.Event) -> Row:
    """Makes one run, on the cores of the thread that calls this; returns its row.

    Args:
        case: variant, alpha and seed.
        compiled: directory of what earlier runs compiled.
        stop: ends the run when it is set.

    Raises:
        RuntimeError: the run failed, or somebody ended it.
    """
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": compiled}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
    keys = {
        "async_generation_ratio": case["alpha"],
        "seed": case["seed"],
        "max_steps": STEPS,
        "eval_steps": EVERY,
        "observe.report": False,
        "observe.trace": False,
        "observe.tensorboard": False,
        "observe.progress": "off",
        "algorithm.pg_variant": case["variant"],
        **{f"algorithm.{name}": value for name, value in VARIANTS[case["variant"]].items()},
    }
    with tempfile.TemporaryDirectory(prefix="bench-variants-") as directory:
        target, begin = Path(directory) / "run", time.perf_counter()
        flags = [f"--config.{name}={value}" for name, value in ({"run_dir": target} | keys).items()]
        command = [sys.executable, "-m", "rljax.main", f"--config={CONFIG}", *flags]
        with (Path(directory) / "output").open("w+") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )
            try:
                scores = _watch(process, target, stop)
            finally:
                _end(process)
            reached = next((step for step, score in scores if score >= GOAL), None)
            if reached is None and (not scores or scores[-1][0] < STEPS):
                output.seek(0)
                raise RuntimeError(f"{case}: ended with {process.returncode}: {output.read()[-2000:]}")
        rewards = [row["reward/mean"] for row in read_metrics(target) if "reward/mean" in row]
    best = max(score for _, score in scores)
    took = {"best": round(best, 4), "reward": round(rewards[-1], 4), "seconds": round(time.perf_counter() - begin, 1)}
    return {**case, "steps": reached, "of": scores[-1][0], **took, "commit": commit()}


def _watch(process: subprocess.Popen[bytes], target: Path, stop: threading.Event) -> list[tuple[int, float]]:
    scores: list[tuple[int, float]] = []
    while process.poll() is None and not any(score >= GOAL for _, score in scores):
        if stop.wait(LOOK_SECONDS):
            break
        scores = _scores(target)
    return scores if process.poll() is None else _scores(target)


def _scores(target: Path) -> list[tuple[int, float]]:
    return [(row["step"], row[SCORE]) for row in read_metrics(target) if row.get(SCORE) is not None]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def show(rows: Sequence[Row]) -> None:
    """Prints the table."""
    alphas = sorted({row["alpha"] for row in rows})
    table: list[list[object]] = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        cells = [_cell([r for r in rows if (r["variant"], r["alpha"]) == (variant, alpha)]) for alpha in alphas]
        table.append([variant, *cells])
    print_table(f"steps to a held-out score of {GOAL}", ("variant", *(f"α = {alpha}" for alpha in alphas)), table)


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    never = STEPS + 1
    steps = sorted(row["steps"] or never for row in rows)
    words = [f"> {STEPS}" if n == never else str(n) for n in (int(statistics.median_high(steps)), steps[0], steps[-1])]
    best = f", best {max(row['best'] for row in rows):.2f}" if steps[0] == never else ""
    spread = f"{words[1]} to {words[2]}{best}; " if len(rows) > 1 else f"{best[2:]}; " if best else ""
    return f"{words[0]} ({spread}n = {len(rows)})"


def _take_core(cores: SimpleQueue[int]) -> None:
    os.sched_setaffinity(0, {cores.get()})  # of this thread, and of the processes that it starts


def run_all(cases: Sequence[Row], jobs: int) -> Iterator[Row]:
    """Makes the runs, each on one of the cores that this process may use; yields a row as its run ends."""
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="bench-compiled-") as compiled,
        ThreadPoolExecutor(jobs, initializer=_take_core, initargs=(cores,)) as pool,
    ):
        try:
            for ended in as_completed([pool.submit(run, case, compiled, stop) for case in cases]):
                yield ended.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", metavar="NAME", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--alphas", nargs="+", type=int, metavar="A", default=ALPHAS)
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=SEEDS)
    parser.add_argument("--jobs", type=int, metavar="N", default=1, choices=range(1, CORES + 1))
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C: the runs end with it
    print_machine()
    if not options.table:
        cases = list(missing(read(), options.variants, options.alphas, options.seeds))
        for row in run_all(cases, options.jobs):
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    show(read())


if __name__ == "__main__":
    main()
