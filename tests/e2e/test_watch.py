"""A run is followed from another shell, which leaves it alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from program import LIMIT, ROOT, Started, audit_of, environment


def watching(run_dir: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rljax.main", "watch", str(run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(cache, PYTHONUNBUFFERED="1"),
        cwd=ROOT,
    )


def files(run_dir: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.stat() for path in run_dir.rglob("*")}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def test_it_follows_a_run_to_its_end(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    started = Started(run_dir, cache, "max_steps=60", "save_steps=60")
    started.until(run_dir.exists, "a run directory")
    to_the_end, for_a_while = watching(run_dir, cache), watching(run_dir, cache)
    assert for_a_while.stdout is not None
    started.until(lambda: "step " in (for_a_while.stdout.readline() if for_a_while.stdout else ""), "a step is seen")
    for_a_while.send_signal(signal.SIGINT)
    assert for_a_while.wait(LIMIT) == 0
    assert started.process.wait(LIMIT) == 0, started.printed
    assert to_the_end.wait(LIMIT) == 0
    assert to_the_end.stdout is not None
    printed = to_the_end.stdout.read()
    assert "step 60/60 · reward" in printed
    assert printed.splitlines()[-1] == "this run has ended (step 60)"
    assert audit_of(run_dir)["balanced"]

    left = files(run_dir)
    again = watching(run_dir, cache)
    assert again.wait(LIMIT) == 0
    assert files(run_dir) == left, "it writes nothing"


def test_it_says_why_a_run_failed(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    started = Started(run_dir, cache, "mode=train", "wait_timeout=3.0")
    started.until(run_dir.exists, "a run directory")
    watched = watching(run_dir, cache)
    assert watched.wait(LIMIT) == 1
    assert started.process.wait(LIMIT) == 1
    assert watched.stdout is not None
    *_, last = watched.stdout.read().splitlines()
    assert last.startswith("this run has failed: trainer: TimeoutError: trainer: waited 3 s for: an explorer: 0 of 4")
