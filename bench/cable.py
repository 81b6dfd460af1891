"""Two machines joined by a cable that can be cut: network namespaces, with the files and cores of this machine."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

ADDRESSES = ("10.197.0.1", "10.197.0.2")
"""Of the two machines, which are named so too: gloo reaches a process by the name of its machine."""
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--uts")


class Cable:
    """The cable and the two namespaces. Each lives as long as the process that holds it."""

    def __init__(self, first: subprocess.Popen[str], second: subprocess.Popen[str]) -> None:
        self._holders = (first, second)
        self._do(0, "ip", "link", "add", "first", "type", "veth", "peer", "name", "second")
        self._do(0, "ip", "link", "set", "second", "netns", str(second.pid))
        for machine, (name, address) in enumerate(zip(("first", "second"), ADDRESSES, strict=True)):
            self._do(machine, "hostname", address)
            self._do(machine, "ip", "address", "add", f"{address}/24", "dev", name)
            self._do(machine, "ip", "link", "set", name, "up")
            self._do(machine, "ip", "link", "set", "lo", "up")

    def on(self, machine: int) -> list[str]:
        """Returns what stands before a command that is to run on a machine, 0 or 1, by its own process id."""
        holder = str(self._holders[machine].pid)
        return ["nsenter", "--target", holder, "--user", "--net", "--uts", "--preserve-credentials", "--"]

    def cut(self) -> None:
        """Cuts the cable: nothing that is sent arrives, and nobody is told."""
        self._do(0, "ip", "link", "set", "first", "down")

    def mend(self) -> None:
        """Joins the machines again."""
        self._do(0, "ip", "link", "set", "first", "up")

    def _do(self, machine: int, *command: str) -> None:
        subprocess.run([*self.on(machine), *command], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_machines() -> Iterator[Cable]:
    """Joins two machines while the context lasts.

    Raises:
        OSError: this machine makes no namespaces; the line says why.
    """
    if missing := [name for name in ("unshare", "nsenter", "ip", "hostname") if shutil.which(name) is None]:
        raise OSError(f"network namespaces need {', '.join(missing)}, of util-linux, iproute2 and hostname")
    with contextlib.ExitStack() as held:
        first = held.enter_context(_holding(_UNSHARE))
        inside = ["nsenter", "--target", str(first.pid), "--user", "--preserve-credentials", "--"]
        second = held.enter_context(_holding([*inside, "unshare", "--net", "--uts"]))
        try:
            yield Cable(first, second)
        except subprocess.CalledProcessError as error:
            raise OSError(f"{' '.join(error.cmd[-5:])}: {' '.join(str(error.stderr).split())}") from error


@contextlib.contextmanager
def _holding(within: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    holder = subprocess.Popen(
        [*within, "sh", "-c", "echo there; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            raise OSError(f"this machine makes no network namespaces: {' '.join(holder.stderr.read().split())}")
        yield holder
    finally:
        holder.kill()
        holder.communicate()
