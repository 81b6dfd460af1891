"""Runs the program as a user does: a process, a command line, a run directory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from tests.e2e.forked import Forked
from tests.e2e.forked import start as fork

ROOT = Path(__file__).parents[2]
SMALLEST = ROOT / "tests" / "e2e" / "smallest.py"
LIMIT = 900.0
"""Seconds that any one process of these tests may take: what hangs ends, what is slow on a busy machine does not."""


def environment(cache: Path, **extra: str) -> dict[str, str]:
    """The environment of a child: compiled programs are shared, failpoints only as asked for."""
    clean = {name: value for name, value in os.environ.items() if name != "RLJAX_FAILPOINTS"}
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), extra.get("XLA_FLAGS"))))
    given = {**extra, "XLA_FLAGS": flags} if flags else extra  # XLA takes what is blank for the name of a file
    return {**clean, "JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu", **given}


def undocumented(run_dir: Path) -> list[str]:
    """Names in the rows of a run that no page of the documentation explains."""
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("metrics.md", "algorithms.md"))
    names = [re.sub(r"<\w+>|\bN\b", "[^/]+", name) for name in re.findall(r"`([a-z_]+(?:/[\w<>/]+)?)`", pages)]
    known = re.compile("|".join(names))
    rows = (json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines())
    return sorted({name for row in rows for name in row if not known.fullmatch(name)})


def strikes(run_dir: Path, failpoints: str) -> dict[str, str]:
    """What tells a child where to strike itself: ``train:3,store:11=SIGSTOP`` is a kill and a halt."""
    if not failpoints:
        return {}
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=run_dir.parent, suffix=".strikes"))
    for strike in failpoints.split(","):
        place, _, signal_name = strike.partition("=")
        (directory / place).write_text(signal_name)
    return {"RLJAX_FAILPOINTS": str(directory)}


def command(run_dir: Path, *overrides: str, config: Path = SMALLEST) -> list[str]:
    given = [f"--config.run_dir={run_dir}", *(f"--config.{override}" for override in overrides)]
    return [sys.executable, "-m", "rljax.main", f"--config={config}", *given]


def run(
    run_dir: Path, cache: Path, *overrides: str, failpoint: str = "", config: Path = SMALLEST
) -> subprocess.CompletedProcess[str]:
    """Runs to the end."""
    given, env = command(run_dir, *overrides, config=config), environment(cache, **strikes(run_dir, failpoint))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = start(given, env, ROOT, out, error)
        try:
            code = process.wait(timeout=LIMIT)
        finally:
            process.kill()
        for stream in (out, error):
            stream.seek(0)
        return subprocess.CompletedProcess(given, code, out.read(), error.read())


def start(
    given: Sequence[str], env: Mapping[str, str], cwd: Path, out: IO[str], error: IO[str]
) -> subprocess.Popen[str] | Forked:
    """Starts a command, by a fork where that is the same."""
    forks = list(given[:3]) == [sys.executable, "-m", "rljax.main"]
    forked = fork(given[3:], env, cwd, out, error) if forks else None
    return forked or subprocess.Popen(given, stdout=out, stderr=error, text=True, env=env, cwd=cwd)


class Started:
    """A process of the program under way, and all that it has printed."""

    def __init__(
        self,
        run_dir: Path,
        cache: Path,
        *overrides: str,
        failpoint: str = "",
        config: Path = SMALLEST,
        within: Sequence[str] = (),
        **extra: str,
    ) -> None:
        """Starts it; ``within`` stands before the command."""
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        self._strikes = strikes(run_dir, failpoint)
        with tempfile.NamedTemporaryFile("w", dir=run_dir.parent, suffix=".log", delete=False) as log:
            self._log = Path(log.name)
            given = [*within, *command(run_dir, *overrides, config=config)]
            self.process = start(
                given, environment(cache, PYTHONUNBUFFERED="1", **self._strikes, **extra), ROOT, log, log
            )

    @property
    def printed(self) -> str:
        return self._log.read_text()

    @property
    def spared(self) -> list[str]:
        """The strikes that have not happened."""
        return sorted(strike.name for place in self._strikes.values() for strike in Path(place).iterdir())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Looks until it holds; says what was waited for if it never does, or if the process ends first."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before {what}: {self.printed}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {LIMIT:g} s for {what}: {self.printed}")
            time.sleep(0.05)

    def end(self, number: signal.Signals | None = None) -> int:
        """Sends the signal, if any, and waits for the end."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout=LIMIT)


def audit_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "audit.json").read_text())


def query(run_dir: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the ledger; none while it does not exist yet."""
    if not (run_dir / "ledger.db").exists():
        return []
    connection = sqlite3.connect(f"file:{run_dir / 'ledger.db'}?mode=ro", uri=True, timeout=30)
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def batches_of(run_dir: Path) -> list[tuple[Any, ...]]:
    """(step, position, taskset, epoch, index) of what was trained into the surviving weights."""
    columns = "step, position, taskset, epoch, task_index"
    return query(run_dir, f"SELECT {columns} FROM groups WHERE state = 'trained' ORDER BY step, position")


def named(process: psutil.Process, name: str) -> psutil.Process | None:
    """The living descendant of that title."""
    for child in process.children(recursive=True):
        try:
            if name in " ".join(child.cmdline()):
                return child
        except psutil.NoSuchProcess:
            continue
    return None


def steps_trained(run_dir: Path) -> int:
    return len(query(run_dir, "SELECT DISTINCT step FROM groups WHERE state = 'trained'"))


def free_port() -> int:
    """Returns a port that nobody listens at, one below those that Linux gives to connections: none has it before a
    program that starts listens there.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as unused, contextlib.suppress(OSError):
            unused.bind(("", port))
            return port


def assert_nothing_is_left(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=120)  # Ray's own agents take half a minute to miss their node
    assert [(p.pid, p.cmdline()) for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def assert_balanced(run_dir: Path, groups: int) -> None:
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"]) == (groups, 0)


def warn_once(printed: str) -> str:
    """The one line that says why the program ended, but for those of hosts that wait for others."""
    lines = [line for line in printed.splitlines() if line.startswith("rljax:") and " s so far" not in line]
    assert len(lines) == 1, printed
    assert "Traceback" not in printed, printed
    return lines[0]
