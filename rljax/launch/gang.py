"""Starts a learner of several hosts, all at once, and starts all again where one is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rljax.config.schema import Config
from rljax.interrupts import HOST_LOST
from rljax.launch.host_news import say
from rljax.launch.host_places import free_port, place_of
from rljax.launch.host_process import Place
from rljax.launch.supervisor import End, Supervisor
from rljax.pipeline.assemble.processors import share_of_processors
from rljax.pipeline.run_dir import RunDir
from sidecar.errors import first_line, printable

MAX_RESTARTS = 3
"""Restarts of all hosts in a row without a new checkpoint in between."""
PAUSE, _LOOK = 5.0, 0.2
"""Seconds before the next start where one has failed, and between looks for a signal meanwhile."""
_GOES_ON = "the same command goes on from the last checkpoint"


class Attempt(Protocol):
    """All hosts, from their start until they have ended; with a coordinator of its own."""

    def run(self) -> End:
        """Watches until all have ended; returns how."""
        ...

    def stop(self, number: int) -> None:
        """Passes a signal on to host 0, which saves and ends with the others. Any signal handler."""
        ...


def supervise(config: Config) -> int:
    """Runs a learner of several hosts, or the one of them that this process is to be; returns the exit code.

    Raises:
        ConfigError: it is not known which host this process is to be.
    """
    place, run = place_of(config, os.environ), RunDir.at(config)
    if place is None and config.launcher == "ray" and config.learner.hosts.start != "here":
        from rljax.launch.ray_gang import OnRay

        with contextlib.closing(OnRay(config)) as on_ray:
            return run_again_where_lost(run, on_ray.start)
    if place is None:
        say(f"learner.hosts: starts {config.learner.hosts.number} hosts on this machine, which takes some seconds")
        return run_again_where_lost(run, lambda: _all_here(config))
    if place.said_by:
        by = f"as {place.said_by} says"
        say(f"learner.hosts: host {place.rank} of {place.number}, {by}; coordinator {place.coordinator}")
    supervisor = Supervisor(config, [place], linked=True)
    with signals_to(supervisor.stop):
        end = supervisor.run()
    if end.lost:
        _record(run, f"{end.lost}: all hosts end; {_GOES_ON}")
    return end.code


def run_again_where_lost(run: RunDir, start: Callable[[], Attempt]) -> int:
    """Starts all hosts, and again where one is lost, up to `MAX_RESTARTS` times in a row; returns the exit code. A
    start that fails counts as such a loss, unless it is the first: what could start once lacks a machine or a port now.

    Args:
        run: a new checkpoint there begins the count anew.
        start: starts an attempt; what it raises at first is raised.
    """
    attempt: Attempt | None = None
    first, stopped = True, 0

    def stop(number: int) -> None:
        nonlocal stopped
        stopped = number
        if attempt is not None:
            attempt.stop(number)

    restarts, reached = 0, _newest(run.checkpoints)
    with signals_to(stop):
        while not stopped:
            attempt = None
            try:
                attempt = start()
            except Exception as error:
                if first:
                    raise
                if stopped:
                    break
                end, pause = End(HOST_LOST, f"all hosts did not start again: {first_line(error)}"), PAUSE
            else:
                if stopped:  # meanwhile: it takes a cluster some time
                    attempt.stop(stopped)
                end, pause = attempt.run(), 0.0
            first = False
            if not end.lost:
                return end.code
            newest = _newest(run.checkpoints)
            restarts, reached = (1 if newest > reached else restarts + 1), newest
            if stopped or end.held:
                _record(run, f"{end.lost}: all hosts end; {_GOES_ON}")
                return end.code
            if restarts > MAX_RESTARTS:
                times = f"{restarts} times in a row without a new checkpoint"
                _record(run, f"{end.lost}: so hosts were lost {times}; {_GOES_ON}")
                return end.code
            again = f"all hosts start again from the last checkpoint (restart {restarts} of {MAX_RESTARTS})"
            _record(run, f"{end.lost}: {again}")
            goes_on = time.monotonic() + pause
            while not stopped and time.monotonic() < goes_on:
                time.sleep(_LOOK)
    if restarts:
        _record(run, f"stopped before all hosts had started again; {_GOES_ON}")
    return 128 + stopped


@contextlib.contextmanager
def signals_to(stop: Callable[[int], None]) -> Iterator[None]:
    """Has SIGTERM and Ctrl-C call ``stop`` with their number while the context lasts."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    former = [signal.signal(number, lambda received, _: stop(received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


def _record(run: RunDir, line: str) -> None:
    """Says what has become of the hosts, and keeps it in ``logs/hosts.log`` of the run, if that has begun."""
    say(line)
    log = run.root / "logs" / "hosts.log"
    if log.parent.is_dir():
        with contextlib.suppress(OSError), log.open("a") as file:
            file.write(printable(f"{datetime.now():%Y-%m-%d %H:%M:%S} {socket.gethostname()}: {line}") + "\n")


def _newest(checkpoints: Path) -> int:
    return max((int(path.name) for path in checkpoints.glob("*") if path.name.isdecimal()), default=-1)


def _all_here(config: Config) -> Supervisor:
    """Starts all hosts on this machine, each with as many of its devices."""
    number, coordinator = config.learner.hosts.number, f"127.0.0.1:{free_port()}"
    each = config.learner.mesh.size // number
    devices = [",".join(str(rank * each + i) for i in range(each)) for rank in range(number)]
    places = [Place(rank, number, coordinator, devices=devices[rank]) for rank in range(number)]
    return Supervisor(config, places, share_of_processors(config))
