"""The live view: what it says in each mode, and that it never holds up its caller."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pty
import re
import threading
import time

import pytest
from rich.console import Console

from rljax.observe import progress as progress_module
from rljax.observe.panel import State, draw, sparkline
from rljax.observe.progress import Progress
from tests.waiting import HANGS, until

STEP = {
    "reward/mean": 0.3125,
    "staleness/mean": 0.8,
    "staleness/max": 1.0,
    "tokens_per_second": 1234.0,
    "time/step": 0.43,
    "time/wait": 0.1,
    "bound/fraction": 0.87,
    "val/reverse_digits/score": 0.41,
}


def pipe() -> tuple[io.StringIO, Console]:
    out = io.StringIO()
    return out, Console(file=out, width=200)


def panel_text(state: State, width: int = 90) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(draw(state))
    return out.getvalue()


def test_a_run_that_teachers_train_shows_how_far_it_is_from_them_and_no_reward_where_nobody_gives_one() -> None:
    out, console = pipe()
    unscored = {"reward/mean": 0.0, "reward/std": 0.0}
    taught = STEP | unscored | {"distill/big/reverse_kl": 0.53, "distill/big/digits/reverse_kl": 0.5}
    with Progress("live", "taught", 4, console=console) as progress:
        progress.step(1, taught)
        progress.step(2, taught | {"reward/mean": 0.25, "reward/std": 0.1})
        progress.step(3, taught | {"distill/other/reverse_kl": 2.0})
    found = out.getvalue().splitlines()
    assert found[0].startswith("step 1/4 · reverse KL 0.53 · held out")
    assert found[1].startswith("step 2/4 · reward 0.25 · reverse KL 0.53 · held out")
    assert found[2].startswith("step 3/4 · reverse KL big 0.53 · reverse KL other 2 · held out")
    state = State("taught", 4)
    for gap in (0.75, 0.5):
        state.add(1, taught | {"distill/big/reverse_kl": gap})
    shown = panel_text(state)
    assert "reverse KL 0.5" in shown
    assert "reward" not in shown
    assert "0.5 to 0.75" in shown


def test_lines_where_there_is_no_terminal() -> None:
    out, console = pipe()
    with Progress("live", "quickstart", 4, logging_steps=2, console=console) as progress:
        for step in range(1, 5):
            progress.step(step, STEP)
        progress.message("[brackets] stay")
    found = out.getvalue().splitlines()
    assert len(found) == 3
    assert found[0] == (
        "step 2/4 · reward 0.312 · held out reverse_digits 0.41 · staleness 0.8 (max 1) · 1.2k tok/s"
        " · 0.43 s (0.10 waiting) · bound 87%"
    )
    assert found[1].startswith("step 4/4")
    assert found[2] == "[brackets] stay"


def test_the_last_step_is_printed_whatever_the_interval() -> None:
    out, console = pipe()
    with Progress("lines", "x", 3, logging_steps=10, console=console) as progress:
        for step in range(1, 4):
            progress.step(step, {})
    assert out.getvalue().splitlines() == ["step 3/3 · reward –"]


def test_attempts_of_a_validation_that_failed_are_told_beside_its_score() -> None:
    out, console = pipe()
    found = {"val/a/score": 0.25, "val/a/failed": 0.0, "val/a/tasks": 8.0}
    with Progress("lines", "x", 3, console=console) as progress:
        progress.metrics(2, found | {"val/b/score": float("nan"), "val/b/failed": 8.0, "val/b/tasks": 8.0})
    assert out.getvalue() == "version 2: val/a/score 0.25, val/b/score nan (8 of 8 attempts failed)\n"


def test_a_long_wait_names_its_reason_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "FIRST_WAIT_LINE", 0.2)
    out, console = pipe()
    with Progress("lines", "x", 3, console=console) as progress:
        for ready in range(3):
            progress.waiting(f"an explorer: none is alive, {ready} ready")
        until(lambda: "waiting for an explorer: none is alive, 2 ready" in out.getvalue())
        progress.waiting(None)
    assert out.getvalue().count("waiting for") <= 2


def test_news_of_a_wait_has_a_line_of_its_own_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "FIRST_WAIT_LINE", 0.2)
    monkeypatch.setattr(progress_module, "LONGEST_WAIT_LINE", 1000.0)
    out, console = pipe()
    with Progress("lines", "x", 3, console=console) as progress:
        progress.waiting("groups: 0 of 8 ready")
        until(lambda: "0 of 8 ready · " in out.getvalue())
        progress._next_wait_line = 1000.0  # as it is after minutes
        progress.waiting("groups: 0 of 8 ready; 1 filtered", news=True)
        until(lambda: "1 filtered · " in out.getvalue())
        progress._next_wait_line = 1000.0
        progress.waiting("groups: 0 of 8 ready; 2 filtered", news=True)
        time.sleep(0.3)
    assert "2 filtered" not in out.getvalue()


def test_off_prints_nothing_and_logs_messages(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), Progress("off", "x", 3) as progress:
        progress.step(1, STEP)
        progress.message("resumed from step 1")
    assert capsys.readouterr().out == ""
    assert "resumed from step 1" in caplog.text


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, live, lines, off"):
        Progress("loud", "x")


def test_the_panel_says_what_matters() -> None:
    state = State("quickstart", 200, step=50, metrics=dict(STEP))
    state.fields |= {"ready": 24, "needed": 32, "bound": 1, "engine_busy": 0.88, "version": 50}
    state.trend.extend([0.1, 0.2, 0.3])
    state.waiting, state.waiting_since = "generation: 24 of 32 groups ready", time.monotonic() - 3
    text = panel_text(state)
    for said in (
        "quickstart",
        "50/200 steps",
        "24 of 32 groups ready",
        "0.8, max 1 ≤ 1",
        "88%",
        "▁▅█",
        "· 3 s",
    ):
        assert said in text


def test_what_is_left_follows_the_median_of_the_last_steps() -> None:
    state = State("quickstart", 200)
    state.began = time.monotonic() - 132.5
    left = []
    # resumed; 120 s to compile, a shape that compiles, a validation of 40 s
    for step, seconds in ((151, 120.0), (152, 30.0), (153, 3.0), (154, 3.5), (155, 43.0), (156, 3.0)):
        state.add(step, {"time/step": seconds, "tokens_per_second": 300 / seconds})
        left.append(state.seconds_left())
    assert left == [None, None, None, 46 * 3.5, 45 * 16.75, 44 * 3.5]
    text = panel_text(state, width=110)
    assert "156/200 steps" in text
    assert "2:12 elapsed, 2:34 left" in text
    assert re.search(r"tokens/s 86 +s/step 3\.50", text)


def test_an_old_pace_is_forgotten() -> None:
    state = State("quickstart", 100)
    for step in range(1, 61):
        state.add(step, {"time/step": 10.0 if step <= 40 else 2.0})
    assert state.seconds_left() == 40 * 2.0
    state.add(100, {"time/step": 2.0})
    assert state.seconds_left() == 0.0


def test_what_is_left_is_unknown_until_steps_tell() -> None:
    state = State("quickstart", 200)
    assert "steps 0:00 elapsed, – left" in re.sub(" +", " ", panel_text(state, width=110))
    for step in range(1, 4):
        state.add(step, {"time/step": 1.0, "tokens_per_second": 5.0})
        assert re.search(r"– left.*tokens/s – +s/step –", panel_text(state, width=110), re.DOTALL)
    state.add(4, {"time/step": 1.0})
    assert "3:16 left" in panel_text(state, width=110)
    assert "left" not in panel_text(State("explorer"))


def test_the_panel_fits_narrow_terminals_and_odd_titles() -> None:
    state = State("run [red]x[/]", 200, step=50, metrics=dict(STEP))
    text = panel_text(state, width=40)
    assert max(len(row) for row in text.splitlines()) <= 40
    assert "run [red]x[/]" in text
    assert "50/200 steps" in text
    assert "starting" in panel_text(State("new"))


def test_sparkline_spans_the_values() -> None:
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([1.0, 1.0, 1.0]) == "▁▁▁"
    assert sparkline([0.0, 0.0, 7.0, 7.0], points=2) == "▁█"
    assert len(sparkline([float(i) for i in range(1000)])) == 32


def test_a_live_terminal_shows_the_panel_and_gives_the_cursor_back() -> None:
    master, slave = pty.openpty()
    chunks: list[bytes] = []

    def read_all() -> None:
        with contextlib.suppress(OSError):  # Linux says so when the other end has closed
            while chunk := os.read(master, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read_all, daemon=True)
    reader.start()
    with os.fdopen(slave, "w") as terminal:
        console = Console(file=terminal, force_terminal=True, width=80, _environ={"TERM": "xterm-256color"})
        with Progress("auto", "quickstart", 4, console=console) as progress:
            progress.step(1, STEP)
            progress.message("checkpoint saved")
    reader.join(HANGS)
    os.close(master)
    text = b"".join(chunks).decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "1/4 steps" in plain
    assert "checkpoint saved" in plain
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


class Hanging(io.StringIO):
    """A terminal that takes no output until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.released.wait(HANGS)
        return len(text)


def test_a_terminal_that_hangs_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_module, "CLOSE_SECONDS", 0.2)
    hanging = Hanging()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        progress = Progress(
            "live", "x", 4, console=Console(file=hanging, force_terminal=True, _environ={"TERM": "xterm"})
        )
        with progress:
            for step in range(1, 5):
                progress.step(step, STEP)
                progress.update(ready=step)
                progress.message("hello")
                progress.waiting("x")
                time.sleep(0.1)
    assert time.monotonic() - began < HANGS / 10
    assert caplog.text.count("took no output") == 1
    hanging.released.set()


def test_a_closed_pipe_ends_the_view_only(caplog: pytest.LogCaptureFixture) -> None:
    out, console = pipe()
    with caplog.at_level(logging.WARNING), Progress("lines", "x", 4, console=console) as progress:
        out.close()
        progress.step(1, STEP)
        until(lambda: "the live view ends" in caplog.text)
        progress.step(2, STEP)
    assert caplog.text.count("the live view ends") == 1


def test_metrics_that_are_not_finite_are_not_shown() -> None:
    out, console = pipe()
    with Progress("lines", "x", 2, console=console) as progress:
        progress.step(1, {"reward/mean": float("nan"), "parity/max_abs_logprob_gap": None})
        progress.metrics(0, {"val/a/score": 0.25, "val/seconds": 3.0})
    assert out.getvalue().splitlines() == ["step 1/2 · reward –", "version 0: val/a/score 0.25"]


def test_a_notebook_updates_one_output() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    code = (
        "import time\nfrom rljax.observe.progress import Progress\n"
        "with Progress('auto', 'notebook', 3) as p:\n"
        "    for i in range(1, 4):\n"
        "        p.step(i, {'reward/mean': i / 3}); p.message(f'said {i}'); time.sleep(0.6)\n"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(book, timeout=int(HANGS), kernel_name="python3").execute()
    outputs = book.cells[0].outputs
    assert [o.output_type for o in outputs] == ["display_data"]
    html = outputs[0].data["text/html"]
    assert "3/3 steps" in re.sub(r"<[^>]+>", "", html)
    assert "said 1" in html
