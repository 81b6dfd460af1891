"""The other ways of weights between processes: what an explorer sees of a learner that sends, dies and returns."""

from __future__ import annotations

import signal
from pathlib import Path

from program import Started, audit_of, query, run

SENT = "sync_method=nccl"


def test_an_explorer_outlives_the_learner_that_sends_its_weights(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    explorer = Started(run_dir, cache, "mode=explore", SENT)
    try:
        explorer.until(lambda: bool(query(run_dir, "SELECT * FROM versions")), "the initial weights")
        killed = run(run_dir, cache, "mode=train", SENT, failpoint="checkpoint:1")
        assert killed.returncode == -signal.SIGKILL, f"the failpoint was not reached: {killed.stderr}"
        done = run(run_dir, cache, "mode=train", SENT)
        assert done.returncode == 0, done.stderr
        assert explorer.end() == 0, explorer.printed
    finally:
        explorer.process.kill()
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 6 * 4
    assert report["trained_twice"] == 0
    addresses = [path for (path,) in query(run_dir, "SELECT path FROM versions ORDER BY lineage, version")]
    assert addresses[0] == "weights/v0-0", "what the explorer began with"
    assert all(path.startswith("nccl://127.0.0.1:") for path in addresses[1:])
    assert len({path.partition("/v")[0] for path in addresses[1:]}) == 2, "a learner, and its successor"
    assert not list((run_dir / "weights").iterdir()), "what lay there is deleted, and nothing was added"
