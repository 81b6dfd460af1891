"""The report of a run that was killed, and several on one page, through the command line."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from program import Started, query, run, steps_trained


def test_a_killed_run_has_a_report_of_its_directory_alone(tmp_path: Path, cache: Path) -> None:
    killed = Started(tmp_path / "killed", cache, "max_steps=4000", "save_steps=1000", "eval_steps=2")
    killed.until(lambda: steps_trained(tmp_path / "killed") >= 4, "four steps")
    page = tmp_path / "killed" / "report.html"
    killed.until(page.exists, "the report of a validation")
    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    standing = page.read_text()
    assert 'pill live">running' in standing
    assert "balanced" in standing
    assert not (tmp_path / "killed" / "audit.json").exists()

    moved = (tmp_path / "killed").rename(tmp_path / "moved")
    page = moved / "report.html"
    page.unlink()
    written = run(moved, cache, "mode=report")
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout == f"report: {page}\n"
    text = page.read_text()
    assert 'pill warn">unfinished' in text
    ((steps,),) = query(moved, "SELECT trained FROM run")
    rows = [json.loads(row) for row in (moved / "metrics.jsonl").read_text().splitlines()]
    assert f'<div class="value">{max(row["step"] for row in rows)}</div>' in text
    assert steps - 1 <= max(row["step"] for row in rows) <= steps
    for title in ("Held-out score", "Response length", "Cut-off and flat groups", "Learning rate", "Balance"):
        assert f"<h3>{title}</h3>" in text
    assert '"answer": "' in text

    (tmp_path / "nothing").mkdir()
    both = f"report.runs=first={moved},second={moved},{tmp_path / 'nothing'}"
    overlaid = run(moved, cache, "mode=report", both, f"report.path={tmp_path / 'both.html'}")
    assert overlaid.returncode == 1
    (line,) = overlaid.stderr.splitlines()
    assert line.startswith(f"rljax: report: {tmp_path / 'nothing'}: no metrics.jsonl here")
    text = (tmp_path / "both.html").read_text()
    assert "2 runs compared" in text
    assert text.count("<b>first</b>") == text.count("<b>second</b>") == 1
