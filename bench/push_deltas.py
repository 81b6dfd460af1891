"""Bytes and processor seconds of versions that are written as what has changed, by the share that has.

    python -m bench.push_deltas [--model 135M] [--pushes 3] [--shares SHARE ...]

A learner of random weights publishes to files and this process reads them, as an engine does that holds the version
before; no engine is started. A share of the values, drawn at random, become their neighbours in bfloat16. The first row
is of whole versions (``sync_deltas=0``); of the others each is written as changes, though it would not be where that
does not pay. MB: the size of the files. Seconds are of the processor, of all threads, so that a busy machine counts
less; write has the export, the comparison and the checksums, read the checksums. Medians; the first push of each row,
which is whole, is not counted. joined: reading the last version from the whole one on, as who joins does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.paired import print_machine, print_table
from bench.push import QWEN_500M, change, config_of, random_learner
from bench.push_adapter import megabytes
from rljax.learner.learner import Learner
from rljax.models.files import load_architecture
from rljax.models.smollm2 import smollm2_directory
from rljax.weights import deltas
from rljax.weights.deltas import DeltaPublisher
from rljax.weights.publisher import OrbaxPublisher
from sidecar.channels.files import read_version
from sidecar.channels.versions import receive

SHARES = (0.001, 0.01, 0.03, 0.1, 0.33)


def seconds(work: Callable[[], Any]) -> float:
    """Returns the processor seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def row_of(learner: Learner, publisher: OrbaxPublisher, share: float, pushes: int) -> list[object]:
    """Returns the medians of pushes: MB, seconds of writing, of reading, and of joining at the end."""
    found, path = [], ""
    for version in range(pushes + 1):
        change(learner, share, version)

        def write(version: int = version) -> None:
            nonlocal path
            path = publisher.publish(version, 1, learner.export("bf16"), model="random", dtype="bf16")

        written = seconds(write)
        found.append((megabytes(Path(path)), written, seconds(lambda: receive(path))))
        publisher.prune({(version, 1)}, 1)
    joined = seconds(lambda: read_version(path))
    medians = (statistics.median(column) for column in zip(*found[1:], strict=True))
    return [*(f"{value:.2f}" for value in medians), f"{joined:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="135M", choices=("135M", "494M"))
    parser.add_argument("--pushes", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", metavar="SHARE", default=SHARES)
    options = parser.parse_args()
    print_machine()
    deltas.PAYS = float("inf")
    architecture = QWEN_500M if options.model == "494M" else load_architecture(smollm2_directory())
    with tempfile.TemporaryDirectory(prefix="bench-push-deltas-") as name:
        root = Path(name)
        learner = random_learner(config_of(root), architecture, root)
        rows = [["whole", *row_of(learner, OrbaxPublisher(root / "whole"), 0.01, options.pushes)]]
        for share in options.shares:
            publisher = DeltaPublisher(root / f"{share:g}", options.pushes)
            rows.append([f"{share:.1%}", *row_of(learner, publisher, share, options.pushes)])
    columns = ["changed", "MB", "write, s", "read, s", f"joined {options.pushes} later, s"]
    print_table(f"versions of {options.model} in bfloat16, processor seconds", columns, rows)


if __name__ == "__main__":
    main()
