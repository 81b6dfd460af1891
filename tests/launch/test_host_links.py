"""Connections of supervisors, and what is said where there is none."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljax.launch.host_links import LONGEST, Hello, Link, Visit
from rljax.launch.host_news import say_where_jax_is_not_reached, warn_where_host_0_is_elsewhere
from rljax.launch.host_process import Place
from tests.e2e.program import free_port

HELLO = Hello("/runs/first", 2, 1, "node08")
WITHIN = 30.0


def until(holds: Callable[[], bool]) -> None:
    """Waits for something, and no longer than `WITHIN`."""
    deadline = time.monotonic() + WITHIN
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_visit_knows_what_hinders_it() -> None:
    nobody = Visit(f"127.0.0.1:{free_port()}", HELLO)
    assert (nobody.read(0.01), nobody.trouble) == ([], "Connection refused")

    unknown = Visit("no-such-machine.invalid:8476", HELLO)
    with pytest.raises(OSError, match=r".") as own:
        socket.getaddrinfo("no-such-machine.invalid", 8476)
    assert (unknown.read(0.01), unknown.trouble) == ([], own.value.strerror)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        visit = Visit(f"127.0.0.1:{silent.getsockname()[1]}", HELLO)
        assert (visit.read(0.01), visit.read(0.01), visit.trouble) == ([], [], "it does not answer")
        there, _ = silent.accept()
        assert there.recv(65536) == f"{HELLO.line}\n".encode()
        there.close()
        until(lambda: visit.read(0.01) != [] or visit.link is None)
        assert visit.trouble == "it hung up without an answer"
        assert (visit.read(0.01), visit.link is None) == ([], False), "it tries again"
        visit.close()


def test_who_is_let_in_learns_where_host_0_is_unless_it_is_of_an_earlier_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        for welcome, name in ((Link.welcome, "node07"), (lambda link, port, _: link.send(f"welcome {port}"), "")):
            visit = Visit(f"127.0.0.1:{door.getsockname()[1]}", HELLO)
            visit.read(0.01)
            there = Link(door.accept()[0])
            welcome(there, 41233, "node07")
            lines: list[str] = []
            until(lambda visit=visit, lines=lines: lines.extend(visit.read(0.01)) or "welcome 41233" in lines)
            assert visit.link is not None
            assert visit.link.name == name
            visit.close()
            there.close()


def test_a_port_of_jax_that_is_not_reached_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A firewall may let the coordinator's port through alone."""
    place, closed = Place(1, 2, "127.0.0.1:1"), f"127.0.0.1:{free_port()}"
    assert say_where_jax_is_not_reached(place, closed) == "Connection refused"
    said = f"cannot reach JAX's service {closed} (Connection refused), though the supervisors have met"
    assert f"learner.hosts: host 1 of 2 {said}" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as service:
        assert say_where_jax_is_not_reached(place, f"127.0.0.1:{service.getsockname()[1]}") == ""
    assert capsys.readouterr().err == ""


def test_host_0_on_another_machine_than_the_coordinator_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """192.0.2.1 is nobody's (RFC 5737)."""
    for own in ("localhost", "127.0.0.1", "[::1]"):
        warn_where_host_0_is_elsewhere(f"{own}:8476")
    assert capsys.readouterr().err == ""
    warn_where_host_0_is_elsewhere("192.0.2.1:8476")
    here = f"host 0 is on {socket.gethostname()}, and 192.0.2.1 is another machine"
    assert f"learner.hosts.coordinator=192.0.2.1:8476: {here}" in capsys.readouterr().err
    for unknown in ("no-such-machine.invalid", "node..1"):
        warn_where_host_0_is_elsewhere(f"{unknown}:8476")
        assert f"{unknown}:8476: {unknown} is not known here (" in capsys.readouterr().err


def test_a_line_has_a_bound() -> None:
    here, there = socket.socketpair()
    with there:
        link = Link(here)
        longest = b"x" * LONGEST
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(there.sendall, longest + b"\n" + longest + b"xx")
            lines: list[str] = []
            until(lambda: bool(lines.extend(link.read()) or lines))
            assert lines == [longest.decode()]
            with pytest.raises(EOFError, match="too long"):
                until(lambda: bool(list(link.read())))
            sent.result()
        link.close()
