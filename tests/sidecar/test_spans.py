"""The file of what an engine did, as the trace of its run reads it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rljax.observe.trace_read import read_spans
from sidecar import spans
from sidecar.spans import SpanFile


def written(run_dir: Path, count: int, limit: int) -> None:
    file = SpanFile(
        str(run_dir / "trace" / "engine-1.jsonl"), "explorer engine 0", "explorer engine 0 · computation", limit
    )
    for number in range(count):
        file("step", 100.0 + number, 100.5 + number, {"tokens": float(number)})
    file.close()
    file.close()


def test_a_run_reads_what_an_engine_wrote(tmp_path: Path) -> None:
    written(tmp_path, 3, limit=100)
    found = list(read_spans(tmp_path))
    assert [(s.name, s.start, s.end, s.args["tokens"]) for s in found] == [
        ("step", 100.0, 100.5, 0.0),
        ("step", 101.0, 101.5, 1.0),
        ("step", 102.0, 102.5, 2.0),
    ]
    assert {s.track for s in found} == {"explorer engine 0 · computation"}


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "FLUSH_SECONDS", 0.0)
    written(tmp_path, 11, limit=4)
    assert [s.start for s in read_spans(tmp_path)] == [108.0, 109.0, 110.0]
    (newest,) = (path for path in (tmp_path / "trace").iterdir() if '"dropped": 8' in path.read_text())
    assert newest.name == "engine-1.5.jsonl"


def test_a_disk_that_refuses_ends_the_writing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "trace").write_text("a file in its place")
    with caplog.at_level(logging.WARNING):
        written(tmp_path, 3, limit=100)
    assert len(caplog.records) == 1
    assert "trace.json will miss what explorer engine 0 does" in caplog.text
