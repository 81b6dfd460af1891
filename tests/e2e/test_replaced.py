"""A trainer that was stopped, replaced and continued; a run directory that vanishes."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from program import Started, audit_of, query, run, steps_trained, warn_once

QUICK = ("rollout.claim_timeout=2", "observe.trace=true", "eval_steps=none")


def contents(run_dir: Path) -> dict[str, tuple[str, int]]:
    """The digest and time of every file but the ledger's own and what processes keep apart by their names."""
    files = [path for path in run_dir.rglob("*") if path.is_file() and not path.name.startswith("ledger.db")]
    apart = ("samples", "trace", "logs")
    kept = [path for path in files if path.relative_to(run_dir).parts[0] not in apart]
    return {str(path.relative_to(run_dir)): (_digest(path), path.stat().st_mtime_ns) for path in kept}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("place", "lineages"), [("begin:1", 1), ("config:1", 2), ("checkpoint:2", 2), ("publish:4", 2), ("commit:2", 2)]
)
def test_a_trainer_that_was_stopped_and_replaced_changes_nothing_when_it_continues(
    tmp_path: Path, cache: Path, place: str, lineages: int
) -> None:
    """The explorer finds it silent and goes on with its successor; then it is continued, with all that it was about."""
    run_dir = tmp_path / "run"
    explorer = Started(run_dir, cache, *QUICK, "mode=explore")
    stopped = Started(run_dir, cache, *QUICK, "mode=train", failpoint=f"{place}=SIGSTOP")
    process = psutil.Process(stopped.process.pid)
    try:
        stopped.until(lambda: process.status() == psutil.STATUS_STOPPED, f"{place} to be reached")
        silent = "SELECT 1 FROM processes WHERE name = 'trainer' AND NOT alive"
        explorer.until(lambda: bool(query(run_dir, silent)), "the explorer to find the trainer silent")
        successor = run(run_dir, cache, *QUICK, "mode=train")
        assert successor.returncode == 0, successor.stderr
        assert explorer.end() == 0, explorer.printed
        drafts = "checkpoints/.saving-1-"  # what it is about to write, which no other may touch, and it deletes
        left = {path: file for path, file in contents(run_dir).items() if not path.startswith(drafts)}
        process.resume()
        assert stopped.end() == 1
        assert re.search("another (trainer|process of the same name) has taken over", warn_once(stopped.printed))
    finally:
        stopped.process.kill()
        explorer.process.kill()
    assert contents(run_dir) == left
    assert {"audit.json", "report.html", "trace.json"} <= left.keys()
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert len(report["lineages"]) == lineages
    named = query(run_dir, "SELECT version, lineage FROM versions WHERE NOT deleted")
    assert {path.name for path in (run_dir / "weights").iterdir()} == {f"v{v}-{lineage}" for v, lineage in named}


def test_a_run_directory_that_vanishes_is_one_line(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    started = Started(run_dir, cache, "max_steps=100000")
    try:
        started.until(lambda: steps_trained(run_dir) > 2, "some steps")
        run_dir.rename(tmp_path / "elsewhere")
        assert started.end() == 1
    finally:
        started.end(signal.SIGKILL)
    line = warn_once(started.printed)
    assert re.match(rf"rljax: {re.escape(str(run_dir))}/ledger\.db: it is gone", line), line
    assert not (run_dir / "ledger.db").exists()
    shutil.rmtree(tmp_path / "elsewhere")
