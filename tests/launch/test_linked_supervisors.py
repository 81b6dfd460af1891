"""Supervisors of several machines: how they meet, what they tell each other, and whom they refuse."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rljax.config.fields import ConfigError
from rljax.interrupts import HOST_LOST, REFUSED
from rljax.launch import host_links, supervisor
from rljax.launch.host_links import Link
from rljax.launch.host_process import HostProcess, Place
from rljax.launch.supervisor import End, Supervisor
from tests.e2e.program import free_port
from tests.launch.conftest import LIVES, MET, WITHIN, config, ended, until


def both(first: Supervisor, second: Supervisor) -> list[End]:
    """Returns how two supervisors ended, in this order."""
    with ThreadPoolExecutor(2) as pool:
        return [one.result() for one in [pool.submit(ended, first), pool.submit(ended, second)]]


def test_supervisors_of_two_machines_tell_each_other(watched: Callable[..., Supervisor]) -> None:
    """Host 1 is let in, is killed, and both say so."""
    first, second = watched(LIVES, rank=0), watched(f"{MET}time.sleep(3); os.kill(os.getpid(), signal.SIGKILL)", rank=1)
    said = f"host 1 ({os.uname().nodename}) was ended by SIGKILL"
    assert both(first, second) == [End(HOST_LOST, said)] * 2


def test_one_that_cannot_be_killed_is_left_behind(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As within a call of the kernel that nothing interrupts, which here is that nobody kills it. The supervisor of
    another machine is let go.
    """
    monkeypatch.setattr(supervisor, "GRACE", 1.0)
    kill, held = HostProcess.kill, "host 1 (pid {}) cannot be killed: its disk or driver hangs"
    monkeypatch.setattr(HostProcess, "kill", lambda host: None if host.rank else kill(host))
    killed = "os.kill(os.getpid(), signal.SIGKILL)"
    here = watched(killed, LIVES)
    both = tmp_path / "both are there"
    once_both = f"[time.sleep(0.05) for _ in iter(lambda: os.path.exists({str(both)!r}), True)]; {killed}"
    apart = [watched(f"{MET}{once_both}", rank=0), watched(f"{MET}{LIVES}", rank=1)]
    try:
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(each.run) for each in (here, *apart)]
            until(lambda: apart[1].hosts)
            both.touch()
            ends = [one.result(WITHIN) for one in running]
        left = [one.hosts[-1].process for one in (here, apart[1])]
        assert [process.poll() for process in left] == [None, None]
        lost = f"host 0 ({os.uname().nodename}) was ended by SIGKILL"
        assert ends == [
            End(HOST_LOST, f"host 0 was ended by SIGKILL; {held.format(left[0].pid)}", held=True),
            End(HOST_LOST, lost),
            End(HOST_LOST, f"{lost}; {held.format(left[1].pid)}", held=True),
        ]
    finally:
        for host in [*here.hosts, *apart[1].hosts]:
            kill(host)
            host.process.wait(WITHIN)


def test_a_host_says_that_it_waits_and_that_it_trains(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "TELL", 0.3)
    doing = "pulse.current().tell('doing train step 1'); "
    second = watched(f"{MET}{doing}{doing}time.sleep(1)", rank=1)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(ended, second)
        waited, deadline = "", time.monotonic() + WITHIN
        waits = r"learner.hosts: host 1 of 2 waits for host 0 at 127.0.0.1:\d+, \d+ s so far \(Connection refused\)\n"
        while not re.search(waits, waited) and time.monotonic() < deadline:
            waited += capsys.readouterr().err
        assert re.search(waits, waited)
        assert ended(watched(f"{MET}time.sleep(1)", rank=0)) == End(0)
        assert ending.result() == End(0)
    trains = [line for line in capsys.readouterr().err.splitlines() if "trains" in line]
    assert len(trains) == 1
    assert f"host 1 of 2 trains with host 0 ({os.uname().nodename}), which prints the progress" in trains[0]


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ({"rank": 1}, "host 1 of this run is here already"),
        ({"rank": 1, "run_dir": "another"}, "host 0 there has run_dir=.*; write that for all hosts, or another port"),
    ],
)
def test_who_is_no_host_of_the_run_is_refused_and_harms_nobody(
    watched: Callable[..., Supervisor], capsys: pytest.CaptureFixture[str], who: dict[str, Any], why: str
) -> None:
    """JAX would end all hosts where a second one of a rank connects."""
    first, second = watched(f"{MET}{LIVES}", rank=0), watched(f"{MET}{LIVES}", rank=1)
    with ThreadPoolExecutor(2) as pool:
        ending = [pool.submit(ended, one) for one in (first, second)]
        until(lambda: first._met and second._met)
        assert ended(watched("raise SystemExit('it must not start')", **who)) == End(REFUSED)
        assert re.search(f"learner.hosts.coordinator=127.0.0.1:[0-9]+: {why}", capsys.readouterr().err)
        assert not any(one.done() for one in ending)
        second.hosts[0].kill()
        assert [one.result().lost for one in ending] == [f"host 1 ({os.uname().nodename}) was ended by SIGKILL"] * 2


def test_who_replaces_a_host_that_was_lost_silently_is_let_in_at_the_next_start(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is gone without a word, and host 0 learns that by `heartbeat_timeout` alone."""
    monkeypatch.setattr(supervisor, "FRESH", 0.0)  # nobody is surely there
    first, second = watched(f"{MET}{LIVES}", rank=0), watched(f"{MET}{LIVES}", rank=1)
    again = watched(f"{MET}{LIVES}", rank=1)
    hung_up = threading.Event()
    admits = first._admits

    def admits_or_not(link: Link, line: str) -> bool:
        known = 1 in first._signs.seen
        admitted = admits(link, line)
        if known and not admitted:
            hung_up.set()
        return admitted

    monkeypatch.setattr(first, "_admits", admits_or_not)
    with ThreadPoolExecutor(3) as pool:
        ending = [pool.submit(ended, one) for one in (first, second)]
        until(lambda: first._met and second._met)
        replacing = pool.submit(ended, again)
        assert hung_up.wait(WITHIN)
        first.hosts[0].kill()
        assert [one.result().code for one in ending] == [HOST_LOST] * 2
        assert again._end is None
        ending = [pool.submit(ended, watched(f"{MET}{LIVES}", rank=0)), replacing]
        until(lambda: again._met)
        again.hosts[0].kill()
        assert [one.result().lost for one in ending] == [f"host 1 ({os.uname().nodename}) was ended by SIGKILL"] * 2


def test_supervisors_that_have_met_name_the_port_where_their_hosts_do_not(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "TELL", 0.3)
    first, second = watched(LIVES, rank=0), watched(LIVES, rank=1)
    first._port = closed = free_port()  # as behind a firewall
    met = ["(the supervisors have met)", "(its supervisor has met host 0's; Connection refused)"]
    at = f"at JAX's service 127.0.0.1:{closed}"
    waits = [rf"host {rank} of 2 waits for the others {at}, \d+ s so far {re.escape(met[rank])}\n" for rank in (0, 1)]
    printed: list[str] = []

    def all_said() -> bool:
        printed.append(capsys.readouterr().err)
        return all(re.search(line, "".join(printed)) for line in waits)

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(both, first, second)
        until(all_said)
        second.stop(signal.SIGTERM)
        ending.result()
    assert all_said(), printed


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waits_for_the_others_ends_by_a_signal(
    watched: Callable[..., Supervisor], capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    """A host that waits in JAX hears of none."""
    waiting = watched("signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(1000)", rank=rank)
    waiting.stop(signal.SIGINT)
    assert ended(waiting) == End(130)
    assert "SIGINT: stopped before the hosts had met; nothing had begun" in capsys.readouterr().err


def test_who_comes_while_all_end_comes_to_the_next_start(watched: Callable[..., Supervisor]) -> None:
    """The door is shut before the others have gone; nor does a descriptor that is used again end the supervisor."""
    first, second = watched(f"{MET}{LIVES}", rank=0), watched(f"{MET}{LIVES}", rank=1)
    with ThreadPoolExecutor(3) as pool:
        ending = [pool.submit(ended, one) for one in (first, second)]
        until(lambda: first._met and second._met)
        again = watched(f"{MET}{LIVES}", rank=1)
        first.hosts[0].kill()
        assert [one.result().code for one in ending] == [HOST_LOST] * 2
        ending = [pool.submit(ended, one) for one in (watched(f"{MET}{LIVES}", rank=0), again)]
        until(lambda: again._met)
        again.hosts[0].kill()
        assert [one.result().lost for one in ending] == [f"host 1 ({os.uname().nodename}) was ended by SIGKILL"] * 2


@pytest.mark.parametrize("said", [b"", b"x" * (host_links.LONGEST + 1)], ids=["silent", "endless"])
def test_who_does_not_say_who_it_is_is_let_go(
    watched: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """As a scanner of ports, of which descriptors and memory would be held for as long as the run lasts."""
    if not said:
        monkeypatch.setattr(host_links, "HELLO_SECONDS", 0.5)
    first = watched(LIVES, rank=0)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(ended, first)
        with socket.create_connection(("127.0.0.1", first._door.sock.getsockname()[1]), WITHIN) as sock:
            sock.sendall(said)
            with contextlib.suppress(ConnectionResetError):  # it has not read all
                assert sock.recv(1) == b""
        until(lambda: not first._links)
        assert first._links == []
        first.stop(signal.SIGINT)
        assert ending.result() == End(130)


def test_the_port_of_jax_is_held_until_jax_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX crashes where another program has taken it."""
    began: list[str] = []
    serve = host_links._jax.get_distributed_runtime_service

    def serve_late(address: str, *given: Any, **named: Any) -> Any:
        port = int(address.rpartition(":")[2])
        for machine in ("", "127.0.0.1"):
            with pytest.raises(OSError, match="in use"):
                socket.create_server((machine, port))
        began.append(address)
        return serve(address, *given, **named)

    monkeypatch.setattr(host_links._jax, "get_distributed_runtime_service", serve_late)
    for local in (True, False):
        service, port = host_links.serve_jax(10, 2, local, 60)
        socket.create_connection(("127.0.0.1", port), WITHIN).close()
        service.shutdown()
    assert len(began) == 2


def test_a_port_that_another_program_has_is_refused(watched: Callable[..., Supervisor]) -> None:
    """JAX would listen at it too, and hosts would come to either."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"learner.hosts.coordinator=first:{port}: host 0 cannot listen there"):
            Supervisor(config(), [Place(0, 2, f"first:{port}")], linked=True)
