"""Processes that are killed and started again, with the next strike in wait for each life, until the run ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from program import Started

SECONDS = 1800.0
"""That one run may take, all its lives together; on a machine with nothing else to do it is a tenth of that."""
WORKER_DIED = "ended: its process died"
"""What the program says of an explorer that was killed as a worker of Ray; it is the end of the program too."""


@dataclass(frozen=True)
class Role:
    """A command line, and the failpoints of each of its lives in turn. The last life ends well: what strikes there
    strikes an engine.
    """

    overrides: tuple[str, ...]
    failpoints: Sequence[str]


def live_to_the_end(run_dir: Path, cache: Path, common: tuple[str, ...], roles: Mapping[str, Role]) -> None:
    """Runs all roles side by side until every one has ended well, in time.

    Every strike has to happen, and a life ends by its own and by nothing else.
    """
    deadline = time.monotonic() + SECONDS
    to_come = {name: list(role.failpoints) for name, role in roles.items()}
    lives: dict[str, Started] = {}

    def begin(name: str) -> None:
        overrides = (*common, *roles[name].overrides)
        lives[name] = Started(run_dir, cache, *overrides, failpoint=to_come[name][0])

    try:
        for name in roles:
            begin(name)
        while any(to_come.values()):
            assert time.monotonic() < deadline, f"{SECONDS:g} s, and still to come: {to_come}"
            time.sleep(0.05)
            for name, life in lives.items():
                if not to_come[name] or life.process.poll() is None:
                    continue
                struck = to_come[name].pop(0)
                assert not life.spared, f"{name} ended and {life.spared} of {struck} did not happen: {life.printed}"
                well = was_killed(life) if to_come[name] else life.process.returncode == 0
                assert well, f"{name} ended with {life.process.returncode} after {struck}: {life.printed}"
                if to_come[name]:
                    begin(name)
    finally:
        for life in lives.values():
            life.process.kill()
            life.process.wait()


def was_killed(life: Started) -> bool:
    return life.process.returncode == -signal.SIGKILL or (life.process.returncode == 1 and WORKER_DIED in life.printed)
