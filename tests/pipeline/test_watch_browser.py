"""The page of `rljax watch` in a browser: state and report shown and renewed, and no error in the console."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from rljax.ledger import leases
from rljax.ledger.sqlite import SqliteFile
from rljax.observe.metrics import MetricsLog
from rljax.observe.report.data import RunData
from rljax.pipeline import watch_page
from rljax.pipeline.watch import Look, Watcher
from tests.browser import needs_browser, opened
from tests.ledger.builders import LedgerBench, make_spec

pytestmark = [pytest.mark.slow, needs_browser]
ROW = {"reward/mean": 0.5, "staleness/mean": 1.0, "time/step": 1.0, "learning_rate": 1e-3}


class Growing(Watcher):
    """Of a run that has done a step more whenever somebody looks."""

    def look(self) -> Look:
        found = super().look()
        MetricsLog(self.root).write(found.step + 1, ROW)
        return found


def test_the_page_shows_state_and_report_and_asks_loopback_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    bench = LedgerBench(SqliteFile(root / "ledger.db"), make_spec(b=2, max_steps=30))
    MetricsLog(root).write(1, ROW)
    shown: list[int] = []
    draw = watch_page.report_page

    def drawn(data: RunData) -> str:
        shown.append(len(data.rows))
        return draw(data)

    monkeypatch.setattr(watch_page, "report_page", drawn)
    with watch_page.page(Growing(root), 0) as address:
        text, console = opened(address, tmp_path)
    assert console == []
    assert "run · step " in text
    assert " of 30 · waiting for " in html.unescape(text)
    assert shown[0] < shown[-1], "drawn anew, after 15 seconds of steps"

    leases.finish(bench.db, bench.lineage)
    with watch_page.page(Watcher(root), 0) as address:
        text, console = opened(address, tmp_path)
        report, of_report = opened(f"{address}report", tmp_path)
    assert console == of_report == []
    assert "this run has ended (step 0)" in text
    assert report.count('class="main-svg"') >= 4
