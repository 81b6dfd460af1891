"""Kills of a learner of several hosts: at random times, and at every failpoint of every host.

    python -m bench.host_kills [--kills 20] [--hosts 2] [--seed 0] [--matrix]

The quickstart's tiny model, hosts of two CPU devices each on this machine, started by one command, which starts all
again where one is lost. A kill is SIGKILL of a host, or, one time in four, SIGSTOP, or, one in eight, SIGKILL of the
command itself, which is then given again. Times are drawn by ``--seed``: up to `LONGEST` seconds after the last step
that followed a kill. With ``--matrix`` the hosts strike themselves, once in each run, at each failpoint and with both
signals. From the moment at which one of its hosts is gone or halted, all of a start must be gone within `GONE_WITHIN`.

Prints a line for each kill: of what, how long all took to end or start again, and the steps so far. Exit code 1 where
the run does not end, its audit is not balanced, something was trained twice, or a process is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from bench.paired import print_machine

LONGEST = 12.0
STEPS_BETWEEN = 8
HEARTBEAT = 10
WAIT_SECONDS = 300.0
GONE_WITHIN = 60.0
"""Seconds; without a sign of life for `HEARTBEAT` seconds a host is lost, and what does not end by itself is killed."""
POLL_SECONDS = 0.1
LOST = 75
"""Exit code of the command that gives up: the same command goes on."""
LEADS = ("begin", "config", "lease", "train", "publish", "announce", "write", "checkpoint", "commit")
"""Failpoints of host 0."""
FOLLOWS = ("follow", "agree", "part", "shards", "restore")
"""Of the others; any of them may write a part of a version first."""
ONCE = ("begin", "config", "restore")
"""Reached once by each process."""


def keys_of(run_dir: Path, hosts: int, number: int) -> dict[str, object]:
    """Returns the keys of a run of so many steps whose hosts have two devices each."""
    return {
        "run_dir": run_dir,
        "learner.hosts.heartbeat_timeout": HEARTBEAT,
        "learner.mesh.fsdp": 2 * hosts,
        "max_steps": number,
        "save_steps": 2,
        "rollout_batch_size": 64,
        "algorithm.minibatch_size": 64,
        "eval_steps": "none",
        "observe.report": "false",
    }


def command_of(keys: Mapping[str, object]) -> list[str]:
    """Returns the command of the quickstart with these keys."""
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    return [sys.executable, "-m", "rljax.main", "--config=configs/quickstart.py", *given]


def steps(run_dir: Path) -> int:
    """Returns how many steps of a run are trained."""
    try:
        with closing(sqlite3.connect(f"file:{run_dir / 'ledger.db'}?mode=ro", uri=True, timeout=30)) as ledger:
            (number,) = ledger.execute("SELECT COUNT(DISTINCT step) FROM groups WHERE state = 'trained'").fetchone()
    except sqlite3.OperationalError:  # there is no ledger yet
        return 0
    return int(number)


def audit(run_dir: Path) -> str:
    """Returns what is wrong with a finished run; empty: nothing."""
    found = json.loads((run_dir / "audit.json").read_text())
    print(f"audit: balanced {found['balanced']}, trained {found['trained']} groups, twice {found['trained_twice']}")
    return "" if found["balanced"] and not found["trained_twice"] else str(found)


class Run:
    """One run and the command that is its latest start.

    Attributes:
        family: its hosts, of this start or of those before that are not known to have ended.
        longest: seconds for which hosts outlived the first of theirs that was gone or halted.
    """

    def __init__(self, run_dir: Path, hosts: int, steps: int, environment: dict[str, str] | None = None) -> None:
        self.run_dir, self._environment = run_dir, {**os.environ, **(environment or {})}
        keys = keys_of(run_dir, hosts, steps)
        keys |= {"learner.hosts.number": hosts, "learner.hosts.start": "here"}
        self._command = command_of(keys)
        self.log = run_dir.parent / f"{run_dir.name}.log"
        self.starts, self.longest = 0, 0.0
        self.family: set[psutil.Process] = set()
        self._outliving: tuple[set[psutil.Process], float] | None = None
        self.start()

    def start(self) -> None:
        """Gives the command."""
        self.starts += 1
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    def hosts(self) -> list[psutil.Process]:
        """Returns the processes of the hosts, by rank."""
        try:
            return [child for child in psutil.Process(self.process.pid).children() if is_there(child)]
        except psutil.NoSuchProcess:
            return []

    def wait_for_more(self, than: int) -> bool:
        """Waits until more steps are trained, and gives the command again where it gives up; False: it has ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            code = self.process.poll()
            if code == 0:
                return False
            if code is not None and code not in (LOST, -signal.SIGKILL):
                sys.exit(f"the command ended with {code}: {self.log.read_text()[-2000:]}")
            if code is not None:
                print(f"  the command ended with {code}, and is given again", flush=True)
                self.start()
            if steps(self.run_dir) > than:
                return True
            self._look()
            time.sleep(POLL_SECONDS)
        sys.exit(f"no step for {WAIT_SECONDS:g} s: {self.log.read_text()[-2000:]}")

    def _look(self) -> None:
        """Notes how long the hosts of a start outlive the first of them that is gone or halted; ends the bench where
        that is too long.
        """
        known, there = set(self.family), set(self.hosts())
        self.family |= there
        if self._outliving is None and any(not is_there(one) or is_halted(one) for one in known or there):
            self._outliving = known or there, time.monotonic()
        if self._outliving is not None:
            family, since = self._outliving
            self.longest = max(self.longest, time.monotonic() - since)
            if not any(map(is_there, family)):
                self.family, self._outliving = self.family - family, None
            elif time.monotonic() - since > GONE_WITHIN:
                sys.exit(f"hosts outlived one of theirs for {GONE_WITHIN:g} s: {self.log.read_text()[-2000:]}")


def is_there(process: psutil.Process) -> bool:
    """Returns whether a process has not ended."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_halted(process: psutil.Process) -> bool:
    """Returns whether a process is stopped by a signal."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


@contextmanager
def nothing_left(run_dir: Path, hosts: Iterable[psutil.Process]) -> Iterator[None]:
    """Ends what is left of a run, of its commands and of these hosts, and fails where something was."""
    yield
    left = [host for host in hosts if is_there(host)] + [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"--config.run_dir={run_dir}" in (process.info["cmdline"] or [])
    ]
    for process in left:
        process.kill()
    if left:
        sys.exit(f"{len(left)} processes were left of {run_dir}")


def _finished(run: Run) -> str:
    print(f"{run.starts} starts of the command; all gone after {run.longest:.1f} s at most", flush=True)
    return audit(run.run_dir)


def at_random(directory: Path, kills: int, hosts: int, seed: int) -> str:
    """Kills at random times; returns what is wrong."""
    drawn = random.Random(seed)
    run = Run(directory / "random", hosts, steps=STEPS_BETWEEN * kills)
    for number in range(kills):
        if not run.wait_for_more(steps(run.run_dir)):
            return f"the run ended before kill {number + 1}: steps are too fast here"
        time.sleep(drawn.uniform(0, LONGEST))
        which, what = drawn.randrange(hosts), signal.SIGSTOP if drawn.random() < 0.25 else signal.SIGKILL
        there, began = run.hosts(), time.monotonic()
        if drawn.random() < 0.125:
            what, who, victim = signal.SIGKILL, "the command", psutil.Process(run.process.pid)
        elif len(there) == hosts:
            who, victim = f"host {which}", there[which]
        else:
            print(f"kill {number + 1}: the hosts were being started", flush=True)
            continue
        done = steps(run.run_dir)
        victim.send_signal(what)
        more = run.wait_for_more(done)
        print(
            f"kill {number + 1}: {what.name} of {who} after step {done}; the next step came after "
            f"{time.monotonic() - began:.1f} s",
            flush=True,
        )
        if not more:
            break
    while run.wait_for_more(steps(run.run_dir)):
        pass
    with nothing_left(run.run_dir, run.family):
        return _finished(run)


def matrix(directory: Path, hosts: int) -> str:
    """Strikes once at each failpoint, by either signal; returns what is wrong."""
    for what in (signal.SIGKILL, signal.SIGSTOP):
        strikes = directory / f"{what.name}.strikes"
        strikes.mkdir()
        names = (*LEADS, *FOLLOWS)
        for name in names:  # each by its own count, which begins anew with each process
            (strikes / f"{name}:{1 if name in ONCE else 2}").write_text(what.name)
        run = Run(directory / what.name, hosts, 3 * len(names), {"RLJAX_FAILPOINTS": str(strikes)})
        began, done = time.monotonic(), 0
        while run.wait_for_more(done):
            done = steps(run.run_dir)
        spared = sorted(strike.name for strike in strikes.iterdir())
        print(f"{what.name}: {len(names) - len(spared)} strikes, {time.monotonic() - began:.0f} s; spared: {spared}")
        with nothing_left(run.run_dir, run.family):
            if wrong := _finished(run):
                return wrong
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.host_kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matrix", action="store_true", help="strike at every failpoint instead")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="bench-host-kills-") as name:
        directory = Path(name)
        wrong = (
            matrix(directory, options.hosts)
            if options.matrix
            else at_random(directory, options.kills, options.hosts, options.seed)
        )
    sys.exit(wrong or 0)


if __name__ == "__main__":
    main()
