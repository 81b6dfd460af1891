"""Cuts of the network between the two hosts of a learner, at every failpoint of each.

    python -m bench.host_cuts

The quickstart's tiny model, hosts of two CPU devices each on two machines (`bench.cable`), a command for each. When a
host comes to a failpoint it is stopped, the cable is cut, and it goes on: the strikes of ``bench.host_kills --matrix``.
Both commands must end, with the code of a lost host, and are given again over a mended cable.

Prints a line for each cut: where, how long both took to end, and the steps so far. Exit code 1 where a command ends
otherwise or not at all, the audit is not balanced, something was trained twice, or a process is left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.cable import ADDRESSES, Cable, two_machines
from bench.host_kills import (
    FOLLOWS,
    LEADS,
    LOST,
    ONCE,
    POLL_SECONDS,
    WAIT_SECONDS,
    audit,
    command_of,
    is_halted,
    is_there,
    keys_of,
    nothing_left,
    steps,
)
from bench.paired import print_machine

PORT = 29400
"""Of the coordinator, in a namespace where nobody else listens; each start has the next."""


class Pair:
    """The commands of both hosts, as they are given the latest time."""

    def __init__(self, run_dir: Path, cable: Cable, strikes: Path) -> None:
        self.run_dir, self._cable, self._strikes, self._starts = run_dir, cable, strikes, 0
        number = 3 * len([*LEADS, *FOLLOWS])
        self._keys = keys_of(run_dir, 2, number) | {"learner.hosts.number": 2}
        self.commands: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Gives both commands."""
        self._starts += 1
        keys = self._keys | {"learner.hosts.coordinator": f"{ADDRESSES[0]}:{PORT + self._starts}"}
        devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        environment = {**os.environ, **devices, "RLJAX_FAILPOINTS": str(self._strikes)}
        with self.log.open("a") as log:
            self.commands = [
                subprocess.Popen(
                    [*self._cable.on(rank), *command_of(keys | {"learner.hosts.rank": rank})],
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
                for rank in range(2)
            ]

    @property
    def log(self) -> Path:
        """File of all that they print."""
        return self.run_dir.parent / f"{self.run_dir.name}.log"

    def codes(self) -> list[int | None]:
        """Returns how each has ended; None: it has not."""
        return [command.poll() for command in self.commands]

    def ended(self) -> list[int | None]:
        """Waits until both have ended; returns how.

        Raises:
            SystemExit: they do not.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while None in self.codes():
            if time.monotonic() > deadline:
                sys.exit(f"a command did not end within {WAIT_SECONDS:g} s: {self.log.read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)
        return self.codes()

    def family(self) -> list[psutil.Process]:
        """Returns all that the commands have started."""
        return [child for command in self.commands for child in psutil.Process(command.pid).children(recursive=True)]


def cuts(directory: Path, cable: Cable) -> str:
    """Cuts at each failpoint; returns what is wrong."""
    strikes = directory / "strikes"
    strikes.mkdir()
    for name in (*LEADS, *FOLLOWS):
        (strikes / f"{name}:{1 if name in ONCE else 2}").write_text("SIGSTOP")
    pair = Pair(directory / "run", cable, strikes)
    pair.start()
    left = {strike.name for strike in strikes.iterdir()}
    while pair.codes() != [0, 0]:
        there = {strike.name for strike in strikes.iterdir()}
        family = pair.family() if there != left else []
        if stopped := [process for process in family if is_halted(process)]:
            where, left, began = ", ".join(sorted(left - there)), there, time.monotonic()
            cable.cut()
            for process in stopped:
                process.send_signal(signal.SIGCONT)
            codes = pair.ended()
            print(f"cut at {where}: both ended after {time.monotonic() - began:.1f} s, {steps(pair.run_dir)} steps")
            sys.stdout.flush()
            if any(map(is_there, family)):
                return f"they have left {[process for process in family if is_there(process)]}"
            if set(codes) != {LOST}:
                return f"they ended with {codes}: {pair.log.read_text()[-2000:]}"
            cable.mend()
            pair.start()
        elif any(code not in (None, 0) for code in pair.codes()):
            return f"a command ended with {pair.codes()} by itself: {pair.log.read_text()[-2000:]}"
        time.sleep(POLL_SECONDS / 5)
    print(f"{len(LEADS) + len(FOLLOWS) - len(left)} cuts; spared: {sorted(left)}")
    with nothing_left(pair.run_dir, ()):
        return audit(pair.run_dir)


def main() -> None:
    argparse.ArgumentParser(
        "python -m bench.host_cuts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="bench-host-cuts-") as name, two_machines() as cable:
        wrong = cuts(Path(name), cable)
    sys.exit(wrong or 0)


if __name__ == "__main__":
    main()
