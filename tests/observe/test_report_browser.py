"""The report in a browser: figures drawn, nothing asked of a network, and no error in the console."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rljax.observe.metrics import MetricsLog
from rljax.observe.report import comparison, read_run
from rljax.observe.samples import SampleLog
from rljax.trajectory import Group
from tests.observe.report_pages import figures, written
from tests.observe.test_samples import TASK, decode, trajectory

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")]


def opened(page: Path, directory: Path) -> tuple[str, list[str]]:
    """The page as the browser has it once its scripts have run, and what its console says: also of every address that
    the page's own policy kept it from asking.
    """
    profile = f"--user-data-dir={directory / 'profile'}"
    logs = ("--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom")
    command = [str(BROWSER), *QUIET, profile, *logs, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def test_a_report_draws_its_figures_alone(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(1, 40):
        log.write(step, {"reward/mean": step / 40, "staleness/mean": 1.0, "time/step": 1.0, "learning_rate": 1e-3})
    log.write(39, {"val/digits/score": 0.5})
    pieces = [(b"fo", 3), (b"ur", 4)]
    SampleLog(tmp_path, "learner", decode, 1).write(39, [Group(TASK, (trajectory("2+2=", pieces),), "four!")], 38)
    page = written(tmp_path, {"seed": 0}, None)
    assert page is not None
    text, console = opened(page, tmp_path)
    assert console == []
    assert text.count('class="main-svg"') >= len(figures(page.read_text())) == 5
    assert '<pre id="answer" tabindex="0">four!</pre>' in text
    assert re.search(r'<pre id="response".*<sup>3</sup>fo</span>.*<sup>4</sup>ur</span></pre>', text)

    both = tmp_path / "both.html"
    both.write_text(comparison([read_run(tmp_path, name=name) for name in ("a", "b")]), encoding="utf-8")
    text, console = opened(both, tmp_path)
    assert console == []
    assert text.count('class="main-svg"') >= len(figures(both.read_text())) == 5

    outside = tmp_path / "outside.html"
    outside.write_text(both.read_text().replace("</header>", '<img src="https://example.com/a.png"></header>', 1))
    _, console = opened(outside, tmp_path)
    assert any("https://example.com/a.png" in line and "Content Security Policy" in line for line in console)
