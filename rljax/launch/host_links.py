"""Connects the supervisors of hosts that are on several machines: that of host 0 listens, the others come to it.

They send lines: who one is, a beat for each of its host's, how that has ended, and why all are to end.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from collections.abc import Iterator

BEAT, ENDED, END = ".", "ended", "end"
"""Beginnings of lines: the host lives; it has ended, with its rank and exit code; all are to end, with the reason."""
CONNECT_SECONDS = 10.0
"""Seconds in which host 0's supervisor must accept a connection."""


class Link:
    """One end of a connection of two supervisors.

    Attributes:
        rank: of the host at the other end; None before it has said so.
        name: of its machine.
        sock: what to wait for.
    """

    def __init__(self, sock: socket.socket, rank: int | None = None, name: str = "") -> None:
        self.rank, self.name, self.sock = rank, name, sock
        self._rest = b""
        sock.setblocking(False)

    def send(self, line: str) -> None:
        """Sends a line, without waiting: who does not read any more is found out by its silence."""
        with contextlib.suppress(OSError):
            self.sock.send(f"{line}\n".encode())

    def read(self) -> Iterator[str]:
        """Yields the lines that have come.

        Raises:
            EOFError: the other end is closed.
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
        yield from (line.decode(errors="replace") for line in lines)

    def close(self) -> None:
        """Closes the connection."""
        self.sock.close()


class Door:
    """The place at which the supervisor of host 0 listens for the others of this attempt, and for no older ones."""

    def __init__(self, local: bool) -> None:
        """Listens at a free port, of this machine alone where all are on it."""
        self.sock = socket.create_server(("127.0.0.1" if local else "", 0), backlog=1024)
        self.sock.setblocking(False)
        self._token = secrets.token_hex(16)

    @property
    def address(self) -> str:
        """Port and token: what host 0 tells the others, who know its machine."""
        return f"{self.sock.getsockname()[1]} {self._token}"

    def accept(self) -> Link | None:
        """Returns a connection of one that is yet to say who it is; None where it has gone."""
        try:
            return Link(self.sock.accept()[0])
        except OSError:
            return None

    def admits(self, link: Link, line: str) -> bool:
        """Returns whether a first line is that of a supervisor of this attempt, and learns who it is from it."""
        token, rank, name = [*line.split(" ", 2), "", "", ""][:3]
        if not hmac.compare_digest(token.encode(), self._token.encode()) or not rank.isdecimal():
            return False
        link.rank, link.name = int(rank), name
        return True

    def close(self) -> None:
        """Listens no more."""
        self.sock.close()


def connect(machine: str, address: str, rank: int) -> Link:
    """Connects a supervisor to that of host 0.

    Args:
        machine: of host 0, as this one reaches it.
        address: `Door.address`.
        rank: of this supervisor's host.

    Raises:
        OSError: nothing answers there.
    """
    port, _, token = address.partition(" ")
    sock = socket.create_connection((machine, int(port)), timeout=CONNECT_SECONDS)
    sock.sendall(f"{token} {rank} {socket.gethostname()}\n".encode())
    return Link(sock, 0, machine)
