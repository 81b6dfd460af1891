"""A supervisor and the processes that it watches over, which here do nothing but live, halt, hang or end."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.interrupts import HOST_LOST
from rljax.launch import supervisor
from rljax.launch.host_process import Place
from rljax.launch.supervisor import End, Supervisor
from sidecar.workers import lifeline
from tests.e2e.program import free_port
from tests.launch.conftest import LIVES, MET, config, ended, until


def test_one_that_is_killed_takes_the_other_with_it(watched: Callable[..., Supervisor]) -> None:
    end = ended(watched(LIVES, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert end == End(HOST_LOST, "host 1 was ended by SIGKILL")


def test_so_does_one_that_halts(watched: Callable[..., Supervisor]) -> None:
    end = ended(watched("os.kill(os.getpid(), signal.SIGSTOP)", LIVES))
    assert end == End(HOST_LOST, "host 0 has shown no sign of life for 5 s (learner.hosts.heartbeat_timeout)")


def test_a_machine_that_stood_still_has_lost_no_host(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = watched(LIVES, LIVES)
    ahead, looks, look = [0.0], itertools.count(), watching._look
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))

    def looks_later() -> None:
        number = next(looks)
        if number == 2:
            ahead[0] = 1000.0
        elif number == 6:
            watching.hosts[1].process.kill()
        look()

    monkeypatch.setattr(watching, "_look", looks_later)
    assert ended(watching) == End(HOST_LOST, "host 1 was ended by SIGKILL")


def test_and_one_that_does_not_come_out_of_a_step(watched: Callable[..., Supervisor]) -> None:
    out = "pulse.current().tell('doing train step 2'); pulse.current().tell('doing '); "
    end = ended(watched(LIVES, f"{out} pulse.current().tell('doing train step 3'); {LIVES}", wait_timeout=1.0))
    assert end == End(HOST_LOST, "host 1 did not come to an end within 1 s (wait_timeout): train step 3")


def test_what_all_say_themselves_is_the_end(watched: Callable[..., Supervisor]) -> None:
    assert ended(watched("sys.exit(2)", "sys.exit(1)")) == End(2)
    assert ended(watched("", "")) == End(0)


def test_who_says_why_it_ends_is_not_lost_by_the_others(watched: Callable[..., Supervisor]) -> None:
    """Host 0 loses what host 1 exchanged with it, and no start of all again would do better."""
    assert ended(watched(f"time.sleep(2); sys.exit({HOST_LOST})", "sys.exit(1)")) == End(1)


def test_how_a_host_has_lost_another_is_the_loss(watched: Callable[..., Supervisor]) -> None:
    """It ends as soon as it has said so, and that is heard all the same."""
    late = "waited 3 s (wait_timeout) for host 1 to train step 7"
    told = f"pulse.current().tell('lost {late}'); os._exit({HOST_LOST})"
    assert ended(watched(told, LIVES)) == End(HOST_LOST, late)
    assert ended(watched(LIVES, f"os._exit({HOST_LOST})")) == End(HOST_LOST, "host 1 has lost another")


def test_a_host_that_is_killed_while_all_stop_is_lost(watched: Callable[..., Supervisor], tmp_path: Path) -> None:
    """It is not what the signal was to end before there was anything to save."""
    there = tmp_path / "there"
    first = f"signal.signal(signal.SIGTERM, lambda *_: open({str(there)!r}, 'w')); {MET}{LIVES}"
    second = f"\nwhile not os.path.exists({str(there)!r}): time.sleep(0.01)\nos.kill(os.getpid(), signal.SIGKILL)"
    watching = watched(f"{first}", second)
    sent = threading.Event()

    def stop() -> None:
        until(lambda: watching._met)
        while not there.exists() and not sent.wait(0.2):
            watching.stop(signal.SIGTERM)

    ended_by_itself = threading.Thread(target=stop)
    ended_by_itself.start()
    try:
        assert ended(watching) == End(HOST_LOST, "host 1 was ended by SIGKILL")
    finally:
        sent.set()
        ended_by_itself.join()


def test_who_stays_behind_is_ended(watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE", 1.0)
    assert ended(watched("", LIVES)) == End(HOST_LOST, "host 1 did not end within 1 s after another host had")


def test_a_signal_goes_to_host_0(watched: Callable[..., Supervisor]) -> None:
    first = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {MET}{LIVES}"
    watching = watched(first, "sys.exit(0)")

    def stop() -> None:
        until(lambda: watching._met)
        watching.stop(signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert ended(watching) == End(0)


def test_who_is_ended_while_it_is_too_busy_to_stop_is_not_lost(watched: Callable[..., Supervisor]) -> None:
    """The kernel does it, by the clock that `rljax.interrupts` sets at a second Ctrl-C."""
    alarmed = "signal.signal(signal.SIGINT, lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.01)); "
    watching = watched(f"{alarmed}{MET}{LIVES}", LIVES)

    def stop() -> None:
        until(lambda: watching._met)
        watching.stop(signal.SIGINT)

    threading.Thread(target=stop).start()
    assert ended(watching) == End(142)


def test_a_start_that_fails_half_way_leaves_nothing(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second host does not start: the first is ended, nobody listens, and no descriptor is left."""
    started: list[subprocess.Popen[bytes]] = []
    start, door, before = lifeline.start, free_port(), set(os.listdir("/proc/self/fd"))

    def start_one(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError("no more processes")
        started.append(start(*given, **named))
        return started[0]

    monkeypatch.setattr(lifeline, "start", start_one)
    places = [Place(rank, 3, f"127.0.0.1:{door}") for rank in range(2)]
    with pytest.raises(OSError, match="no more processes"):
        Supervisor(config(), places, {"HOST_0": LIVES}, linked=True)
    assert started[0].returncode == -signal.SIGKILL
    socket.create_server(("127.0.0.1", door)).close()
    assert set(os.listdir("/proc/self/fd")) <= before
