"""A password in the ledger's URL: no file, no list of processes and no log repeats it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljax.config.schema import Config, ExplorerConfig
from rljax.launch.local import Child
from rljax.pipeline.run_dir import RunDir
from tests.config.test_schema import make

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALLEST = ROOT / "tests" / "e2e" / "smallest.py"
PASSWORD = "s3cret"


@pytest.fixture
def database() -> Iterator[socket.socket]:
    """A server that lets a client connect, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(120)
        yield listening


def url(database: socket.socket) -> str:
    return f"postgresql://user:{PASSWORD}@127.0.0.1:{database.getsockname()[1]}/runs"


def assert_nowhere(process: psutil.Process, directory: Path) -> None:
    family = [process, *process.children(recursive=True)]
    assert [p.cmdline() for p in family if PASSWORD in " ".join(p.cmdline())] == []
    assert all(p.cmdline() for p in family)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_an_explorer_in_a_process_of_its_own_is_told_the_password_and_nobody_else(
    database: socket.socket, tmp_path: Path
) -> None:
    config: Config = make(
        ledger=url(database), run_dir=str(tmp_path / "run"), explorer=ExplorerConfig(own_process=True)
    )
    child = Child(config, RunDir.create(config))
    child.start()
    process = psutil.Process(child.pid)
    try:
        client, _ = database.accept()  # it knows where to connect to, so it has read its config
        with client:
            assert_nowhere(process, tmp_path)
    finally:
        child.kill()
        assert "SIGKILL" in child.wait()


def test_a_password_on_the_command_line_leaves_the_list_of_processes(database: socket.socket, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rljax.main", f"--config={SMALLEST}", f"--config.run_dir={tmp_path / 'run'}"]
    with subprocess.Popen([*command, f"--config.ledger={url(database)}"], cwd=ROOT) as program:
        try:
            client, _ = database.accept()
            with client:
                assert_nowhere(psutil.Process(program.pid), tmp_path)
                assert "--config.ledger=postgresql://user:***@" in " ".join(psutil.Process(program.pid).cmdline())
        finally:
            program.kill()
