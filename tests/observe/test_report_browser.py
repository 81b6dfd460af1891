"""The report in a browser: figures drawn, nothing asked of a network, and no error in the console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rljax.observe.metrics import MetricsLog
from rljax.observe.report import comparison, read_run
from rljax.observe.samples import SampleLog
from rljax.trajectory import Group
from tests.browser import needs_browser, opened
from tests.observe.report_pages import figures, written
from tests.observe.test_samples import TASK, decode, trajectory

pytestmark = [pytest.mark.slow, needs_browser]


def test_a_report_draws_its_figures_alone(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(1, 40):
        log.write(step, {"reward/mean": step / 40, "staleness/mean": 1.0, "time/step": 1.0, "learning_rate": 1e-3})
    log.write(39, {"val/digits/score": 0.5})
    pieces = [(b"fo", 3), (b"ur", 4)]
    SampleLog(tmp_path, "learner", decode, 1).write(39, [Group(TASK, (trajectory("2+2=", pieces),), "four!")], 38)
    page = written(tmp_path, {"seed": 0}, None)
    assert page is not None
    text, console = opened(page.as_uri(), tmp_path)
    assert console == []
    assert text.count('class="main-svg"') >= len(figures(page.read_text())) == 5
    assert '<pre id="answer" tabindex="0">four!</pre>' in text
    assert re.search(r'<pre id="response".*<sup>3</sup>fo</span>.*<sup>4</sup>ur</span></pre>', text)

    both = tmp_path / "both.html"
    both.write_text(comparison([read_run(tmp_path, name=name) for name in ("a", "b")]), encoding="utf-8")
    text, console = opened(both.as_uri(), tmp_path)
    assert console == []
    assert text.count('class="main-svg"') >= len(figures(both.read_text())) == 5

    outside = tmp_path / "outside.html"
    outside.write_text(both.read_text().replace("</header>", '<img src="https://example.com/a.png"></header>', 1))
    _, console = opened(outside.as_uri(), tmp_path)
    assert any("https://example.com/a.png" in line and "Content Security Policy" in line for line in console)
