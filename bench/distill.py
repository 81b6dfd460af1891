"""A student without rewards, to its teacher's held-out score.

    python -m bench.distill [--teacher DIRECTORY] [--alphas 0 4] [--seeds 0]

What: trains ``configs/quickstart.py`` by its rewards and exports it, unless ``--teacher`` names a model that has been;
then ``configs/distill.py`` by the reverse KL to that teacher, from scratch and without a reward, each α and seed a run
to its end. The score is the share of held-out digits that are right, looked at every ten steps.

Target: at α = 0 and at α = 4 the student's held-out score is that of its teacher within the config's steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from bench.paired import print_machine, print_table
from rljax.observe.metrics import read_metrics

SCORE = "val/reverse_digits/score"
DIVERGENCE = "distill/quickstart/reverse_kl"
COLUMNS = (
    "α",
    "seed",
    "teacher's score",
    "reached at step",
    "score at the end",
    "reverse KL, first and last step, nats a token",
    "staleness, mean and largest",
    "seconds",
)


def run(config: str, directory: Path, **keys: Any) -> float:
    """Runs the program in a process of its own; returns the seconds it took.

    Raises:
        subprocess.CalledProcessError: it failed; it has said why.
    """
    keys = {"run_dir": directory, "observe.progress": "off", "observe.report": False, **keys}
    flags = [f"--config.{name}={value}" for name, value in keys.items()]
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rljax.main", f"--config={config}", *flags], stdout=sys.stderr, check=True)
    return time.perf_counter() - begin


def taught(folder: Path) -> Path:
    """Trains the teacher in a folder, and returns the directory that it was exported to."""
    run("configs/quickstart.py", folder)
    run("configs/quickstart.py", folder, mode="export")
    (exported,) = (folder / "export").iterdir()
    return exported


def score_of(teacher: Path, folder: Path) -> float:
    """Returns the held-out score of a model, with the student's prompts."""
    run("configs/quickstart.py", folder, mode="evaluate", checkpoint="initial", **{"model.path": teacher})
    (row,) = json.loads((folder / "evaluation.json").read_text())
    return float(row[SCORE])


def student(teacher: Path, wanted: float, folder: Path, alpha: int, seed: int) -> list[object]:
    """Makes one run; returns its row of `COLUMNS`."""
    seconds = run(f"configs/distill.py:{teacher}", folder, async_generation_ratio=alpha, seed=seed)
    rows = read_metrics(folder)
    scores = [(row["step"], row[SCORE]) for row in rows if row.get(SCORE) is not None]
    reached = next((str(step) for step, score in scores if score >= wanted), f"> {scores[-1][0]}")
    trained = [row for row in rows if DIVERGENCE in row]
    stale = sum(row["staleness/mean"] for row in trained) / len(trained)
    largest = max(row["staleness/max"] for row in trained)
    divergence = f"{trained[0][DIVERGENCE]:.3f}, {trained[-1][DIVERGENCE]:.3f}"
    return [alpha, seed, wanted, reached, scores[-1][1], divergence, f"{stale:.1f}, {largest:.0f}", f"{seconds:.0f}"]


def main() -> None:
    """Runs the bench and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, metavar="DIRECTORY", help="a quickstart's export; else one is trained")
    parser.add_argument("--alphas", nargs="+", type=int, metavar="A", default=(0, 4))
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=(0,))
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="bench-distill-") as directory:
        folder = Path(directory)
        teacher = options.teacher or taught(folder / "teacher")
        wanted = score_of(teacher, folder / "score")
        rows = [
            student(teacher, wanted, folder / f"student-{alpha}-{seed}", alpha, seed)
            for alpha, seed in product(options.alphas, options.seeds)
        ]
    print_table("a student without rewards, to its teacher's held-out score", COLUMNS, rows)


if __name__ == "__main__":
    main()
