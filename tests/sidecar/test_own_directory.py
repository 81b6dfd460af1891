"""Temporary directories of processes that are killed, and of those that live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.own_directory import OwnDirectory

MAKES = """
import sys
from sidecar.own_directory import OwnDirectory
made = OwnDirectory("rljax-own-")
(made.path / "factors").write_bytes(b"x")
print(made.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def maker() -> tuple[subprocess.Popen[str], Path]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", MAKES], **pipes)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_has_left_is_removed_by_the_next_and_what_a_living_one_has_is_not(
    temporary: Path,
) -> None:
    dead, left = maker()
    alive, kept = maker()
    other = temporary / "rljax-other-"
    other.mkdir()
    dead.kill()
    assert dead.wait() == -signal.SIGKILL
    assert (left / "factors").exists()
    mine = OwnDirectory("rljax-own-")
    assert sorted(temporary.iterdir()) == sorted([kept, mine.path, other])
    assert (kept / "factors").read_bytes() == b"x"
    alive.communicate()
    assert not kept.exists(), "an end that is none of a signal's removes it"
    mine.close()
    mine.close()
    assert os.listdir(temporary) == [other.name]
