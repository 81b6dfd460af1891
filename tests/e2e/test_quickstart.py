"""The main job of the README: it learns, and its account balances."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from program import ROOT, Started, audit_of, undocumented

from rljax.observe.metrics import read_json_lines

pytestmark = pytest.mark.optimised

LEARNED = 0.9


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    file = run_dir / "metrics.jsonl"
    return list(read_json_lines(file)) if file.exists() else []


def scores(run_dir: Path) -> list[float]:
    return [row["val/reverse_digits/score"] for row in rows_of(run_dir) if "val/reverse_digits/score" in row]


def test_quickstart_learns(tmp_path: Path, cache: Path) -> None:
    """It is ended once it has learned, which it has to before its last step."""
    run_dir = tmp_path / "runs" / "quickstart"
    started = Started(run_dir, cache, config=ROOT / "configs" / "quickstart.py")
    try:
        started.until(lambda: max(scores(run_dir), default=0.0) >= LEARNED, f"{LEARNED} held out")
        assert started.end(signal.SIGTERM) == 0, started.printed
    finally:
        started.process.kill()
    assert scores(run_dir)[0] < 0.2
    rows = rows_of(run_dir)
    assert not any(row.get("policy/ratio_drift") for row in rows), "true log-probabilities are not doubted"
    assert undocumented(run_dir) == []
    trained = [row for row in rows if "tokens/trained" in row]
    assert trained
    assert all(row["tokens/trained"] == row["tokens/sampled"] and row["batch/masked_fraction"] == 0 for row in trained)
    audit = audit_of(run_dir)
    assert (audit["balanced"], audit["trained_twice"], audit["max_staleness"]) == (True, 0, 1)
    trace = run_dir / "trace.json"
    assert trace.stat().st_size < 5e6
    processes = [
        event["args"]["name"]
        for event in json.loads(trace.read_text())["traceEvents"]
        if "process_name" in event.values()
    ]
    assert processes == ["explorer", "explorer engine 0", "learner"]
    report = (run_dir / "report.html").read_text()
    for words in ("reverse_digits", "balanced", "staleness"):
        assert words in report.lower()
