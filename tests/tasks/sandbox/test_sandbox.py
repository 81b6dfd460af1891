"""Hostile programs, as whoever runs the tests, and where that is root as an ordinary user and by bubblewrap too."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rljax.tasks.sandbox.sandbox import Limits, Outcome, SandboxUnavailable, _command, _visible, run
from tests.tasks.sandbox.hostile import PROGRAMS, run_all

USER = 54321
ROOT = Path(__file__).parents[3]


def as_user(*command: str) -> list[str]:
    return [shutil.which("setpriv") or "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]


def python_of_all() -> str | None:
    """An interpreter of our version or newer that an ordinary user can start."""
    for python in (sys.executable, "/usr/bin/python3"):
        check = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.path.exists(sys.executable))"
        if shutil.which(python) and subprocess.run(as_user(python, "-c", check), capture_output=True).returncode == 0:
            return python
    return None


def held_to(found: dict[str, list[str]], secret: Path) -> None:
    escaped = {name: one for name, one in found.items() if "ESCAPED" in one[1] + one[2] or "hunter2" in one[1] + one[2]}
    assert not escaped
    ended = {name: one for name, one in found.items() if not re.fullmatch(PROGRAMS[name][1], one[0])}
    assert not ended
    assert secret.read_text() == "hunter2"
    assert len(found) >= 30


def is_of_another_worker(process: psutil.Process) -> bool:
    """Of a parallel session, which may run programs in sandboxes of its own; or it has ended."""
    workers = {p.pid for p in psutil.Process(os.getppid()).children()} - {os.getpid()}
    try:
        return not workers.isdisjoint(p.pid for p in process.parents())
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "secret.txt"
    path.parent.mkdir()
    path.write_text("hunter2")
    path.chmod(0o666)
    return path


@pytest.mark.slow
def test_no_hostile_program_gets_out_or_takes_more_than_its_share(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    before = set(psutil.pids())
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        held_to(run_all(str(secret), server.getsockname()[1]), secret)
        with pytest.raises(BlockingIOError):
            server.accept()
    there = [p for p in psutil.process_iter(["name", "cmdline"]) if p.pid not in before and "/box" in str(p.info)]
    assert not [p for p in there if not is_of_another_worker(p)]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs the tests already")
@pytest.mark.parametrize("way", ["namespaces", "bubblewrap"])
def test_an_ordinary_user_can_shut_programs_in(way: str, secret: Path) -> None:
    python = python_of_all()
    if python is None:
        pytest.skip("no interpreter that other users can start")
    if way == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    path = os.environ["PATH"] if way == "bubblewrap" else "/none"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "API_KEY": "hunter2", "PYTHONDONTWRITEBYTECODE": "1"}
    command = as_user(python, str(ROOT / "tests/tasks/sandbox/hostile.py"), str(secret), "1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd="/")
    if "SandboxUnavailable" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if way == "bubblewrap":
        found.pop("many files")  # it offers no limit of their number
    held_to(found, secret)


def test_a_program_reads_writes_and_may_use_its_folder() -> None:
    program = (
        "import asyncio, subprocess, sys, tempfile\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x')\n"
        "async def double(x): return 2 * x\n"
        "print(asyncio.run(double(int(input()))), subprocess.run(['echo', 'hi'], capture_output=True).stdout)\n"
        "print('noted', file=sys.stderr)"
    )
    assert run(program, "21\n") == Outcome("", b"42 b'hi\\n'\n", b"noted\n")
    assert run("raise SystemExit(7)").reason == "status 7"


def test_of_an_interpreter_in_a_home_its_own_folders_alone_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "lib", ".ssh"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin/python3").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python3"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    shown = {path for path, _ in _visible()[0] if str(tmp_path).startswith(path) or path.startswith(str(tmp_path))}
    assert shown == {str(tmp_path / "bin"), str(tmp_path / "lib")}


def test_the_interpreter_may_lie_beneath_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a clone made there. Else a program's /tmp is the folder that it may write to."""
    writes = "import tempfile; tempfile.TemporaryFile(); print(open({!r}).read())"
    with tempfile.TemporaryDirectory(dir="/tmp") as prefix:
        (Path(prefix) / "lib").mkdir()
        (file := Path(prefix) / "lib/name").write_text("shown")
        monkeypatch.setattr(sys, "base_prefix", prefix)  # sys.executable has another, which is shown too
        assert run(writes.format(str(file))) == Outcome("", b"shown\n", b"")


def test_output_without_end_is_cut_off() -> None:
    outcome = run("while True: print('x' * 99)", limits=Limits(output_bytes=1000))
    assert (outcome.reason, len(outcome.stdout)) == ("output", 1000)


def test_programs_end_with_the_process_that_judges_them(tmp_path: Path) -> None:
    script = (
        "from rljax.tasks.sandbox.sandbox import run\nimport os, threading, time\n"
        f"run('import time; time.sleep(3600)  # {tmp_path}')"
    )
    judge = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    inside: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while not [p for p in inside if "program.py" in str(p.cmdline())] and time.monotonic() < deadline:
        inside = psutil.Process(judge.pid).children(recursive=True)
    judge.kill()
    judge.wait()
    assert inside
    gone, alive = psutil.wait_procs(inside, 30)
    assert not alive
    assert len(gone) == len(inside)


def test_a_program_that_nobody_waits_for_any_more_never_begins() -> None:
    """The kernel forgets, as a process changes its user, that it is to end with its parent."""
    source, program = os.pipe()
    report, reporting = os.pipe()
    command = _command(Limits(), source, reporting)
    waits = subprocess.Popen(command, pass_fds=(source, reporting), env={}, cwd="/", stdout=subprocess.PIPE)
    inside: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while not [p for p in inside if os.geteuid() or p.uids().real] and time.monotonic() < deadline:
        inside = psutil.Process(waits.pid).children(recursive=True)
    waits.kill()
    waits.wait()
    os.write(program, b"print('began')")
    for descriptor in (source, program, report, reporting):
        os.close(descriptor)
    assert inside
    assert not psutil.wait_procs(inside, 30)[1]
    assert waits.stdout
    assert waits.stdout.read() == b""
    waits.stdout.close()


def test_where_there_can_be_no_sandbox_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from rljax.tasks.sandbox import sandbox

    real = sandbox._command

    def elsewhere(*args: object) -> list[str]:
        *head, spec = real(*args)  # type: ignore[arg-type]
        return [*head, json.dumps({**json.loads(spec), "visible": [["/no/such", "/no/such"]]})]

    monkeypatch.setattr(sandbox, "_command", elsewhere)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    with pytest.raises(SandboxUnavailable, match=r"cannot be made here \(.*\); apt install bubblewrap, allow user "):
        run("print(1)")
