"""Connects the supervisors of hosts that are on several machines: that of host 0 listens at the coordinator's port, and
the others come to it before they start their hosts. So whoever is not of the run never meets JAX, which would end all.

They send lines: who one is, as JSON, and whether that is let in; a beat for each of its host's, how that has ended, and
why all are to end.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from jax._src.lib import _jax  # JAX has no public name for its coordination service

from rljax.config.fields import ConfigError
from rljax.learner.hosts import JAX_LATER

BEAT, ENDED, END = ".", "ended", "end"
"""Beginnings of lines: the host lives; it has ended, with its rank and exit code; all are to end, with the reason."""
WELCOME, REFUSED = "welcome", "refused"
"""Beginnings of the answer to who comes: the port of JAX's service; why one is not let in."""
_NAMED = "named "
"""Beginning of the line before that: host 0's machine. Supervisors of an earlier program neither say nor need it."""
CONNECT_SECONDS = 2.0
"""Seconds in which host 0's machine must answer one try."""
HELLO_SECONDS = 5 * CONNECT_SECONDS
"""Seconds in which who comes has to say who it is."""
LONGEST = 65536
"""Most bytes of a line: more is none of a supervisor."""


@dataclass(frozen=True)
class Hello:
    """First line of a supervisor, which says who it is.

    Attributes:
        run: directory of the run.
        number: of its hosts.
        rank: of the first host there.
        name: of the machine.
    """

    run: str
    number: int
    rank: int
    name: str

    def refusal_of(self, other: Hello) -> str:
        """Returns why another is no host of this one's run; empty where it is."""
        if other.run != self.run:
            return f"host 0 there has run_dir={self.run}; write that for all hosts, or another port for another run"
        if other.number != self.number:
            return f"{other.number} hosts, and host 0 has learner.hosts.number={self.number}; write the same for all"
        return ""

    @property
    def line(self) -> str:
        """The first line that a supervisor sends."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> Hello | None:
        """Returns who says that line; None where it is no supervisor."""
        try:
            found = cls(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            return None
        fits = isinstance(found.rank, int) and isinstance(found.number, int) and 0 < found.rank < found.number
        return found if fits else None


class Link:
    """One end of a connection of two supervisors.

    Attributes:
        rank: of the host at the other end; None before it has said so.
        name: of its machine.
        sock: what to wait for.
    """

    def __init__(self, sock: socket.socket, rank: int | None = None, name: str = "") -> None:
        self.rank, self.name, self.sock = rank, name, sock
        self._since = time.monotonic()
        self._rest = b""
        sock.setblocking(False)

    def stays_silent(self, now: float) -> bool:
        """Returns whether the other end has not said in time who it is; ``now`` is of the monotonic clock."""
        return self.rank is None and now - self._since > HELLO_SECONDS

    def send(self, line: str) -> None:
        """Sends a line, without waiting: who does not read any more is found out by its silence."""
        with contextlib.suppress(OSError):
            self.sock.send(f"{line}\n".encode())

    def read(self) -> Iterator[str]:
        """Yields the lines that have come.

        Raises:
            EOFError: the other end is closed, or sends no lines.
        """
        try:
            found = self.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        if not found:
            raise EOFError("the other end is closed")
        *lines, self._rest = (self._rest + found).split(b"\n")
        if max(map(len, (*lines, self._rest))) > LONGEST:
            raise EOFError("a line is too long")
        yield from (line.decode(errors="replace") for line in lines)

    def welcome(self, port: int, name: str) -> None:
        """Lets another in: says the machine of host 0, and the port of JAX's service there."""
        self.send(f"{_NAMED}{name}")
        self.send(f"{WELCOME} {port}")

    def close(self) -> None:
        """Closes the connection."""
        self.sock.close()


class Door:
    """The place at which the supervisor of host 0 listens for the others."""

    def __init__(self, coordinator: str, local: bool) -> None:
        """Listens at the coordinator's port, of this machine alone where all hosts are on it.

        Raises:
            ConfigError: another program does.
        """
        port = int(coordinator.rpartition(":")[2])
        both = not local and socket.has_dualstack_ipv6()
        family, address = socket.AF_INET6 if both else socket.AF_INET, ("127.0.0.1" if local else "", port)
        try:
            self.sock = socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=both)
        except OSError as error:
            raise ConfigError(
                f"learner.hosts.coordinator={coordinator}: host 0 cannot listen there ({error.strerror}): a host 0 of "
                "this run, or of another, may be there; start one of each rank, or write another port for all hosts"
            ) from error
        self.sock.setblocking(False)

    def accept(self) -> Link | None:
        """Returns a connection of one that is yet to say who it is; None where it has gone."""
        try:
            return Link(self.sock.accept()[0])
        except OSError:
            return None

    def close(self) -> None:
        """Listens no more."""
        self.sock.close()


class Visit:
    """The way of a supervisor to that of host 0, which may not be there yet.

    Attributes:
        link: the connection; None where there is none now.
        trouble: why nothing has answered yet, for messages; empty at first.
    """

    def __init__(self, coordinator: str, hello: Hello) -> None:
        """Takes HOST:PORT of host 0's, and what is to be said there."""
        self.link: Link | None = None
        self.trouble = ""
        self._coordinator, self._hello = coordinator, hello

    def read(self, seconds: float) -> list[str]:
        """Returns the lines that are answered within some seconds; connects first, and again where nobody answers."""
        try:
            if self.link is None:
                self.link = self._connect()
                return []
            lines = list(self.link.read()) if select.select([self.link.sock], [], [], seconds)[0] else []
            for line in lines:
                self.link.name = line.removeprefix(_NAMED) if line.startswith(_NAMED) else self.link.name
            return lines
        except (OSError, EOFError, UnicodeError) as error:
            self.trouble = why_not_reached(error)
            self.close()
            time.sleep(seconds)
        return []

    def _connect(self) -> Link:
        sock = _connection(self._coordinator)
        link = Link(sock, 0)
        link.send(self._hello.line)
        self.trouble = "it does not answer"
        return link

    def close(self) -> None:
        """Closes the connection."""
        if self.link is not None:
            self.link.close()
            self.link = None


def _connection(address: str) -> socket.socket:
    machine, _, port = address.rpartition(":")
    return socket.create_connection((machine.strip("[]"), int(port)), timeout=CONNECT_SECONDS)


def why_not_reached(error: OSError | EOFError | UnicodeError) -> str:
    """Returns what hinders a connection, for messages."""
    if isinstance(error, EOFError):
        return "it hung up without an answer"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def trouble_at(address: str) -> str:
    """Returns why nothing can connect to HOST:PORT from here; empty where something can."""
    try:
        _connection(address).close()
    except OSError as error:
        return why_not_reached(error)
    return ""


def serve_jax(heartbeat_timeout: float, number: int, local: bool, grace: float) -> tuple[Any, int]:
    """Starts JAX's coordination service, through which so many hosts find each other and speak; they have ``grace``
    seconds to end in. Returns it and its port, which was free.
    """
    with _held_port(local) as port:
        service = _jax.get_distributed_runtime_service(
            f"127.0.0.1:{port}" if local else f"[::]:{port}",
            number,
            heartbeat_timeout=JAX_LATER * heartbeat_timeout,
            shutdown_timeout=int(grace),
        )
    return service, port


@contextlib.contextmanager
def _held_port(local: bool) -> Iterator[int]:
    """Holds a free port, so that no other program takes it before JAX does, which crashes where one has. JAX shares
    ports, and no other program listens at one that is held so.
    """
    both = not local and socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as held:
        if both:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1" if local else "", 0))
        yield held.getsockname()[1]
