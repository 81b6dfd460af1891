"""Children whose parent dies, at the worst moment and in the worst state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sidecar.workers import lifeline
from tests.orphans import survivors

HOLD = "import os, sys, time; sys.path.insert(0, os.getcwd()); from sidecar.workers import lifeline\n"
SEIZES = (
    HOLD + "lifeline.hold(int(sys.argv[1])); print('up', flush=True); import ctypes; ctypes.PyDLL(None).sleep(3600)"
)
"""Ends by nothing that its interpreter would have to do: it sleeps with the interpreter's lock in its hand."""
PARENT = """
import os, subprocess, sys, time
from sidecar.workers import lifeline
children = [{children}]
for child in children:
    child.stdout.readline()
print("ready", flush=True)
time.sleep(3600)
"""
CHILD = "lifeline.start([sys.executable, '-c', {code!r}, str(os.getpid())], stdout=subprocess.PIPE)"
ROOT = Path(__file__).parents[3]


def run_child(code: str, parent: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(parent)], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )


def test_a_child_that_holds_its_interpreters_lock_dies_with_its_parent() -> None:
    assert survivors(PARENT.format(children=CHILD.format(code=SEIZES))) == []


def test_where_the_kernel_does_not_tell_a_thread_looks() -> None:
    looks = HOLD + (
        "lifeline._set_parent_death_signal = lambda: False\n"
        "lifeline.hold(int(sys.argv[1])); print('up', flush=True); time.sleep(3600)"
    )
    assert survivors(PARENT.format(children=CHILD.format(code=looks))) == []


def test_a_parent_that_died_before_the_child_could_hold_on_is_missed() -> None:
    """Nobody would tell of it any more."""
    late = HOLD + "lifeline.hold(int(sys.argv[1])); print('lives')"
    gone = run_child("print('short')", 0)
    assert gone.returncode == 0
    done = run_child(late, os.getppid())  # that is not the one which has started it
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert run_child(late, os.getpid()).stdout == "lives\n"


def test_a_child_started_in_a_thread_that_ends_lives_on() -> None:
    """The kernel takes the end of the thread that forked for the death of the parent."""
    held = HOLD + "lifeline.hold(int(sys.argv[1])); print('up', flush=True); print(sys.stdin.readline().strip())"
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-c", held, str(os.getpid())]
        child = lifeline.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # it holds on

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    printed, _ = started[0].communicate(b"still here\n", timeout=60)
    assert (started[0].returncode, printed) == (0, b"still here\n")


def test_what_cannot_be_started_is_the_callers_error_and_the_next_is_started() -> None:
    with pytest.raises(FileNotFoundError):
        lifeline.start(["/nowhere"])
    assert lifeline.start([sys.executable, "-c", ""]).wait(60) == 0


def test_grandchildren_that_know_nothing_of_it_die_with_the_group() -> None:
    leader = HOLD + (
        "import subprocess\nlifeline.end_group_with_process(); lifeline.hold(int(sys.argv[1]))\n"
        "subprocess.Popen(['sleep', '3600']); print('up', flush=True); time.sleep(3600)"
    )
    assert survivors(PARENT.format(children=CHILD.format(code=leader))) == []


def test_a_child_is_of_this_package_in_a_folder_that_has_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar" / "__init__.py").write_text("raise RuntimeError('somebody else is meant')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as python -m has it
    assert lifeline.search_path()[-1] == str(tmp_path)
    command, environment = lifeline.python_module("sidecar.workers.lifeline"), lifeline.import_path()
    assert subprocess.run(command, env={**os.environ, **environment}, timeout=600, check=False).returncode == 0


def test_who_works_in_a_checkout_means_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(lifeline.__file__).parents[2]
    monkeypatch.chdir(own)
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    assert lifeline.search_path() == [str(own), "/elsewhere"]
