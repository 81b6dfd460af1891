"""The quickstart on one device, as a user starts it: until the held-out score is 0.9, and the first step once more.

Seconds count from the start of the process. The first start finds an empty compile cache, the second a warm one. Either
is ended as soon as it has shown what it is started for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
TARGET = 0.9
CONFIG = "configs/quickstart.py"
POLL_SECONDS = 0.1
END_SECONDS = 20.0


def measure(overrides: list[str], target: float | None) -> Iterator[Row]:
    """Yields a row for each of the two starts.

    Args:
        overrides: of the config's keys, for a start that is to be short.
        target: held-out score at which the first start is ended; None: it runs to its own end.
    """
    with tempfile.TemporaryDirectory(prefix="bench-quickstart-") as name:
        cold = watch(Path(name) / "cold", overrides, lambda rows: target is not None and best(rows) >= target)
        yield {"case": "cold compile cache", "score": best(cold["rows"]), "target": target} | facts(cold)
        warm = watch(Path(name) / "warm", overrides, lambda rows: last_step(rows) >= 1)
        yield {"case": "warm compile cache"} | facts(warm)


def watch(run_dir: Path, overrides: list[str], enough: Callable[[list[Row]], bool]) -> Row:
    """Runs the quickstart until its metrics are enough or it ends; returns them and when it was started.

    Raises:
        RuntimeError: it failed; with the last line that it printed.
        ModuleNotFoundError: a package that it needs is not installed.
    """
    command = [sys.executable, "-m", "rljax.main", f"--config={CONFIG}", f"--config.run_dir={run_dir}", *overrides]
    begin = time.time()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        try:
            rows: list[Row] = []
            while process.poll() is None and not enough(rows):
                time.sleep(POLL_SECONDS)
                rows = read_rows(run_dir / "metrics.jsonl")
        finally:
            end(process)
        rows = read_rows(run_dir / "metrics.jsonl")
        if not enough(rows) and process.returncode:
            printed.seek(0)
            lines = [line.strip() for line in printed.read().splitlines() if line.strip()]
            why = lines[-1][:300] if lines else "it printed nothing"
            if missing := re.search(r"No module named '([\w.]+)'", why):
                raise ModuleNotFoundError(why, name=missing[1])
            raise RuntimeError(f"rljax.main ended with {process.returncode}: {why}")
    return {"rows": rows, "begin": begin}


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts the program, twice as a user in a hurry does, and kills it where that is not enough."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.kill(process.pid, number)
        try:
            process.wait(END_SECONDS / 4 if number == signal.SIGINT else END_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def read_rows(file: Path) -> list[Row]:
    """Returns the whole lines of a metrics file that may still be written."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def scores(rows: list[Row]) -> list[tuple[Row, float]]:
    """Returns the rows with a held-out score, and it."""
    found = [(row, name) for row in rows for name in row if name.startswith("val/") and name.endswith("/score")]
    return [(row, float(row[name])) for row, name in found if row[name] is not None]


def best(rows: list[Row]) -> float:
    """Returns the best held-out score so far; -1 before there is one."""
    return max((score for _, score in scores(rows)), default=-1.0)


def last_step(rows: list[Row]) -> int:
    """Returns the number of the last step; -1 before any row."""
    return max((int(row["step"]) for row in rows), default=-1)


def facts(watched: Row) -> Row:
    """Returns steps, and seconds to the first step and to the target."""
    rows, begin = watched["rows"], watched["begin"]
    first = next((row["timestamp"] for row in rows if row["step"] >= 1), None)
    reached = next((row for row, score in scores(rows) if score >= TARGET), None)
    return {
        "steps": last_step(rows),
        "first_step_seconds": first and first - begin,
        "steps_to_target": reached and reached["step"],
        "seconds_to_target": reached and reached["timestamp"] - begin,
    }
