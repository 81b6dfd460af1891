"""The main job of the README, on two digits instead of three: it learns all of it, and its account balances. All three
digits are for `python -m bench.curve configs/quickstart.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import ROOT, audit_of, run, undocumented

pytestmark = pytest.mark.optimised

SHORT = ("max_steps=50", *(f"tasks.{of}.reverse_digits.args.digits=2" for of in ("train", "validation")))


def test_quickstart_learns(tmp_path: Path, cache: Path) -> None:
    run_dir = Path("runs/quickstart")  # relative, as without the option
    done = run(run_dir, cache, *SHORT, config=ROOT / "configs" / "quickstart.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "audit: balanced" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / run_dir / "metrics.jsonl").read_text().splitlines()]
    scores = [row["val/reverse_digits/score"] for row in rows if "val/reverse_digits/score" in row]
    assert scores[0] < 0.2
    assert scores[-1] >= 0.9, scores
    assert not any(row.get("policy/ratio_drift") for row in rows), "true log-probabilities are not doubted"
    assert undocumented(tmp_path / run_dir) == []
    trained = [row for row in rows if "tokens/trained" in row]
    assert trained
    assert all(row["tokens/trained"] == row["tokens/sampled"] and row["batch/masked_fraction"] == 0 for row in trained)
    audit = audit_of(tmp_path / run_dir)
    assert (audit["balanced"], audit["trained_twice"], audit["max_staleness"]) == (True, 0, 1)
    trace = tmp_path / run_dir / "trace.json"
    assert trace.stat().st_size < 5e6
    processes = [
        event["args"]["name"]
        for event in json.loads(trace.read_text())["traceEvents"]
        if "process_name" in event.values()
    ]
    assert processes == ["explorer", "explorer engine 0", "learner"]
    report = (tmp_path / run_dir / "report.html").read_text()
    for words in ("reverse_digits", "balanced", "staleness"):
        assert words in report.lower()
