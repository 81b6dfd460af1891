"""A sweep: as many runs as values, one after another."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from program import LIMIT, SMALLEST, Started, audit_of, query, run


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, cache: Path) -> None:
    """One of three cannot run; the others do, and are not run again when it can."""
    asked = ("seed=0,1,2", "max_steps=2", "eval_steps=2")
    root = tmp_path / "few-sweep"
    broken = root / "seed=1"
    broken.mkdir(parents=True)
    (broken / "ledger.db").write_text("no database")
    done = run(tmp_path / "few", cache, *asked, config=SMALLEST)
    assert done.returncode == 1
    outcomes = [line for line in done.stdout.splitlines() if line.startswith("sweep: ") and "·" in line]
    assert [line.split(" · ")[0] for line in outcomes] == [
        "sweep: seed=0: ended",
        "sweep: seed=1: failed with exit code 1",
        "sweep: seed=2: ended",
    ]
    assert " · held out digits " in outcomes[0]
    assert "sweep: 1 of 3 failed; the same command tries them again" in done.stdout
    assert [(root / f"seed={n}" / "report.html").exists() for n in range(3)] == [True, False, True]
    assert [json.loads((root / f"seed={n}" / "config.json").read_text())["seed"] for n in (0, 2)] == [0, 2]

    shutil.rmtree(broken)
    again = run(tmp_path / "few", cache, *asked, config=SMALLEST)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("this run is finished") == 2
    assert [audit_of(root / f"seed={n}")["balanced"] for n in range(3)] == [True] * 3
    assert [len(query(root / f"seed={n}", "SELECT id FROM lineages")) for n in range(3)] == [1, 1, 1]
    assert not (tmp_path / "few").exists()


def test_ctrl_c_ends_the_run_under_way_and_begins_no_other(tmp_path: Path, cache: Path) -> None:
    started = Started(tmp_path / "few", cache, "seed=0,1", "max_steps=100000", "save_steps=100000", config=SMALLEST)
    first = tmp_path / "few-sweep" / "seed=0"
    started.until(lambda: (first / "metrics.jsonl").exists(), "a step")
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(LIMIT) == 0, started.printed
    assert "stopped after a checkpoint; the same command resumes" in started.printed
    assert "sweep: stopped; the same command goes on" in started.printed
    assert not (tmp_path / "few-sweep" / "seed=1").exists()
    assert audit_of(first)["balanced"]
