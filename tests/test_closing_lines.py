"""Last lines of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljax.commands import _closing_lines

AUDIT = {
    **dict.fromkeys(("claimed", "trained", "open", "demonstrations", "retired", "trained_twice", "max_staleness"), 0),
    "dropped": {},
    "filtered": {},
    "staleness_bound": 0,
    "balanced": True,
}


def test_what_restarts_retired_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    for retired, said in (
        (0, "0 filtered; trained_twice 0"),
        (3, "; 3 retired by restarts; trained"),
    ):
        (tmp_path / "audit.json").write_text(json.dumps(AUDIT | {"retired": retired}))
        assert _closing_lines(tmp_path) == 0
        assert said in capsys.readouterr().out


def test_a_validation_without_a_score_is_none_of_the_trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": 0, "val/a/score": None, "val/b/score": None}, {"step": 1, "val/a/score": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "audit.json").write_text(json.dumps(AUDIT))
    assert _closing_lines(tmp_path) == 0
    first, audit, _ = capsys.readouterr().out.splitlines()
    assert first == "val/a/score: 0.500"
    assert audit.startswith("audit: balanced")
