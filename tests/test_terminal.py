"""Text of others on a terminal: shown, never obeyed."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
import tensorstore
from rich.console import Console

from rljax import commands
from rljax.command_line import _Printable, main, without_closed_loops, without_orbax_traceback
from rljax.config.load import load_config
from rljax.observe.progress import Progress
from sidecar.errors import describe, escape_log_records, first_line, printable
from tests.waiting import HANGS

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\rb\u202e"
HARMLESS = r"a\x1b]0;owned\x07\x1b[2J\x9b31m\rb\u202e"


def test_control_characters_are_written_as_escapes_and_the_rest_stays() -> None:
    assert printable(EVIL) == HARMLESS
    assert printable("a\tb\nü 漢 🙂 \\x1b") == "a\tb\nü 漢 🙂 \\x1b"
    assert printable("\ud800") == r"\ud800", "it cannot be printed at all"


def test_the_line_that_says_why_a_program_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--config=nowhere{EVIL}.py"]) == 2
    printed = capsys.readouterr().err
    assert r"nowherea\x1b]0;owned\x07" in printed
    assert printed.removesuffix("\n").isprintable()


def test_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJAX_TRACEBACK", "1")
    monkeypatch.setitem(__import__("rljax.commands").commands.COMMANDS, "audit", fails)
    smallest = Path(__file__).parent / "e2e" / "smallest.py"
    assert main([f"--config={smallest}", "--config.mode=audit", f"--config.run_dir={tmp_path}"]) == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert HARMLESS in printed
    assert "\x1b" not in printed


def test_a_traceback_of_a_config_that_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJAX_TRACEBACK", "1")
    smallest = Path(__file__).parent / "e2e" / "smallest.py"
    assert main([f"--config={smallest}", "--config.max_step=3"]) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "load.py" in printed
    assert "max_step: unknown key; did you mean max_steps?" in printed.splitlines()[-1]


def fails(config: object) -> int:
    raise RuntimeError(EVIL)


def test_what_tensorstores_threads_cannot_deliver_any_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", without_closed_loops)
    promise, future = tensorstore.Promise.new()
    loop = asyncio.new_event_loop()
    waits = asyncio.ensure_future(future, loop=loop)
    for _ in range(2):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    thread = threading.Thread(target=promise.set_result, args=(1,))
    thread.start()
    thread.join()
    assert future.result() == 1
    assert capsys.readouterr().err == ""
    assert not waits.done()

    class Fails:
        def __del__(self) -> None:
            raise RuntimeError("something else")

    Fails()
    assert "something else" in capsys.readouterr().err


def test_a_task_of_orbax_that_failed_unseen_is_logged_without_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its saves leave such tasks behind where the directory vanishes: asyncio logs them when they are collected."""

    async def restores() -> None:
        ocp.StandardCheckpointer().restore(tmp_path / "absent")

    async def ours() -> None:
        raise RuntimeError("something else")

    loop = asyncio.new_event_loop()
    seen = logging.getLogger("asyncio")
    seen.addFilter(without_orbax_traceback)
    try:
        for work in (restores(), ours()):
            loop.run_until_complete(asyncio.wait([loop.create_task(work)]))
            gc.collect()
    finally:
        seen.removeFilter(without_orbax_traceback)
        loop.close()
    lines = [_Printable().format(record) for record in caplog.records]
    of_orbax, of_ours = (line for line in lines if line.startswith("Task exception was never retrieved"))
    assert "absent" in of_orbax
    assert "Traceback" not in of_orbax
    assert "Traceback" in of_ours


def test_what_is_logged() -> None:
    record = logging.LogRecord("rljax", logging.WARNING, "f.py", 1, "episode: %s", (EVIL,), None)
    assert _Printable("%(message)s").format(record) == f"episode: {HARMLESS}"


@pytest.mark.parametrize("mode", ["live", "lines"])
def test_the_live_view(mode: str) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=mode == "live", width=200, color_system=None)
    with Progress(mode, f"run {EVIL}", 3, console=console) as progress:
        progress.message(f"episode: {EVIL}")
        progress.waiting(EVIL)
    assert HARMLESS in file.getvalue()
    assert "\x1b]" not in file.getvalue()
    assert "\x07" not in file.getvalue()


@pytest.fixture
def escaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `rljax.Run` does first, for the time of a test."""
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    escape_log_records()
    escape_log_records()  # another run of the same process


@pytest.mark.parametrize("name", ["rljax.rollout.explorer", "sidecar.hosting.local", "envs"])
def test_what_is_logged_in_a_program_of_the_users(name: str, escaping: None) -> None:
    """Its handlers are its own, and know nothing of ours."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        logger.warning("an environment says %s", EVIL)
        try:
            fails(None)
        except RuntimeError:
            logger.warning("and fails", exc_info=True)
    finally:
        logger.removeHandler(handler)
    assert written.getvalue().startswith(f"an environment says {HARMLESS}\nand fails\nTraceback")
    assert written.getvalue().count(HARMLESS) == 2
    assert "\x1b" not in written.getvalue()


def test_what_a_factory_of_the_program_puts_into_records_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its formatter names it: a record without it would not be written at all."""

    class Traced(logging.LogRecord):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            self.trace_id = "t-17"

    monkeypatch.setattr(logging, "_logRecordFactory", Traced)
    escape_log_records()
    assert logging.makeLogRecord({"msg": "sent from elsewhere"}).getMessage() == "sent from elsewhere"
    record = logging.getLogger("rljax").makeRecord("rljax", 20, "f.py", 1, EVIL, (), None)
    assert logging.Formatter("%(trace_id)s %(message)s").format(record) == f"t-17 {HARMLESS}"


def test_what_others_log_is_theirs(escaping: None) -> None:
    assert type(logging.getLogger("other").makeRecord("other", 20, "", 1, EVIL, (), None)) is logging.LogRecord


def test_lines_of_foreign_exceptions() -> None:
    error = RuntimeError(EVIL)
    assert first_line(error) == HARMLESS.partition(r"\r")[0]
    assert describe(RuntimeError("a\x1b[2J")) == r"RuntimeError: a\x1b[2J"


LOGGED = """
import logging, sys
from huggingface_hub.utils import logging as _
from rljax.command_line import run
from rljax.config.fields import ConfigError

def load():
    logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s")
    raise ConfigError("refused")

sys.exit(run(load))
"""


def test_a_hub_s_warning_is_one_line() -> None:
    ran = subprocess.run([sys.executable, "-c", LOGGED], capture_output=True, text=True, timeout=HANGS, check=False)
    assert ran.returncode == 2
    assert ran.stderr.count("Retrying in 1s") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["watch", "--help"], ["configs"], ["configs", "gsm8k"], ["--config=quickstart", "--dry-run"]],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_what_is_shown_ends_quietly_where_its_reader_has_seen_enough(
    arguments: list[str], buffered: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=-1 if buffered else 1) as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main(arguments) == 141
    assert capfd.readouterr().err == ""


LAKE = Path(__file__).parent / "data" / "seeds" / "agent_val_frozen_lake_async.yaml"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("mode", ["plan", "report", "audit"])
def test_a_mode_that_is_read_ends_quietly_where_its_reader_has_seen_enough(
    mode: str, buffered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    def shown(config: object) -> int:
        print("what it says", flush=not buffered)
        return 0

    monkeypatch.setitem(commands.COMMANDS, mode, shown)
    with open(writing, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main(["--config=quickstart", f"--config.mode={mode}", f"--config.run_dir={tmp_path}"]) == 141
    assert capfd.readouterr().err == ""


def test_a_translation_ends_quietly_where_its_reader_has_seen_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what is asked for is written: its file is no word that nobody reads."""
    target, given = tmp_path / "mine.py", [f"--config={LAKE}", "--config.learner.devices=cpu"]
    for arguments in ([*given, f"--dry-run={target}"], [*given, "--config.mode=plan"]):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w") as unread, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", unread)
            assert main(arguments) == 141
        assert capfd.readouterr().err == ""
    assert load_config(str(target)) == load_config(str(LAKE), {"learner.devices": "cpu"})


def test_a_run_that_cannot_be_told_of_fails(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A connection of its own that has closed is no reader who has seen enough."""

    def broken(config: object) -> int:
        raise BrokenPipeError("an engine")

    monkeypatch.setitem(commands.COMMANDS, "export", broken)
    assert main(["--config=quickstart", "--config.mode=export"]) == 1
    assert "an engine" in capfd.readouterr().err
