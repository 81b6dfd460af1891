"""Signs of life: a child shows its parent every second that it runs, and tells it lines, through a pipe.

A thread of the child beats: it goes on while another waits in a collective or compiles, and halts with the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

SECONDS = 1.0
"""Between two beats."""
_BEAT = "."


class Pulse:
    """The child's end: beats from now on, until the parent is gone.

    Attributes:
        service: where the parent serves what its children find each other by; empty for nowhere.
    """

    def __init__(self, descriptor: int, service: str = "") -> None:
        """Takes the pipe's end, which this process has inherited."""
        self.service = service
        self._descriptor = descriptor
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def tell(self, line: str) -> None:
        """Tells the parent a line; without one nothing happens. Any thread: a short line is written at once."""
        try:
            os.write(self._descriptor, f"{line}\n".encode())
        except OSError:  # the parent is gone, and this process ends with it
            return

    def _beat(self) -> None:
        while not _never.wait(SECONDS):
            self.tell(_BEAT)


class Pulses:
    """The parent's end: takes in what a child says."""

    def __init__(self, descriptor: int) -> None:
        """Takes the pipe's end, which is read without waiting."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._rest = b""

    def read(self) -> Iterator[str]:
        """Yields the lines that have come, with beats left out.

        Raises:
            EOFError: the child has closed its end; it has ended, or is about to.
        """
        try:
            found = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return
        if not found:
            raise EOFError("the child says nothing more")
        *lines, self._rest = (self._rest + found).split(b"\n")
        yield from (line.decode() for line in lines if line.decode() != _BEAT)


_never = threading.Event()
_pulse: Pulse | None = None


def begin(descriptor: int, service: str = "") -> None:
    """Begins this process's own pulse."""
    global _pulse
    _pulse = Pulse(descriptor, service)


def current() -> Pulse | None:
    """Returns this process's pulse; None where nobody watches over it."""
    return _pulse
