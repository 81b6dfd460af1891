"""Runs hostile Python programs: without network, files, neighbours or much memory, for a limited time.

Each program is shut in by `inside.py`: namespaces of its own, an empty folder in memory, limits, a filter of system
calls. As an ordinary user that needs user namespaces, or `bubblewrap`; as root neither. Nothing of a program is left
once it has ended: its folder was memory, and its processes end with the first of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljax.tasks.sandbox import inside
from sidecar.workers import lifeline

_LOOK = 0.02  # seconds between looks at the memory of what runs
_END = 10.0  # seconds that a killed program may take to be gone
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
_INTERPRETER = ("bin", "lib", "lib64", "pyvenv.cfg")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_numbers = itertools.count(int.from_bytes(os.urandom(3), "big"))


class SandboxUnavailable(RuntimeError):
    """This machine lets no program be shut in: one line with the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a program.

    Attributes:
        seconds: of wall-clock time.
        memory_bytes: of all its processes together, and of the address space of each.
        processes: at once, threads included.
        output_bytes: written to standard output, and to standard error.
        folder_bytes: in its folder.
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    processes: int = 32
    output_bytes: int = 1 << 20
    folder_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a program, and what it wrote.

    Attributes:
        reason: empty where it ended by itself with status 0; else ``time``, ``memory``, ``output``, ``status N`` or
            ``signal N``.
        stdout, stderr: what it wrote, up to the limit.
    """

    reason: str
    stdout: bytes
    stderr: bytes


@dataclass(eq=False)
class Running:
    """A program that was started.

    Attributes:
        process: what waits for it; ends after all its processes have.
        report: read end of the pipe that takes why it could not be shut in.
        outputs: descriptors to read, by name.
    """

    process: subprocess.Popen[bytes]
    report: int
    outputs: dict[str, int]

    def resident_bytes(self) -> int:
        """Returns the memory that all its processes have in use."""
        return sum(_resident(pid) for pid in _descendants(self.process.pid))

    def end(self) -> None:
        """Ends all its processes, and waits until they are gone."""
        if self.process.poll() is None:
            self.process.terminate()  # what waits for it kills it, waits for its end, and ends
            try:
                self.process.wait(_END)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def close(self) -> None:
        """Ends it, and closes the descriptors."""
        self.end()
        for descriptor in (self.report, *self.outputs.values()):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def raise_if_refused(self) -> None:
        """Raises SandboxUnavailable where the program, which has ended, could not be shut in and never ran."""
        if refused := os.read(self.report, 1000).decode(errors="replace"):
            raise SandboxUnavailable(
                f"the sandbox for programs cannot be made here ({refused}); apt install bubblewrap, allow user "
                "namespaces to this user, or run as root with CAP_SYS_ADMIN; it needs Linux 5.12 or newer"
            )

    def reason(self) -> str:
        """Returns how it ended by itself, as in `Outcome`.

        Raises:
            SandboxUnavailable: it could not be shut in, and never ran.
        """
        code = self.process.wait()
        self.raise_if_refused()
        if code in (0, 128):
            return "" if code == 0 else "status 128"
        return f"signal {-code if code < 0 else code - 128}" if code < 0 or code > 128 else f"status {code}"


def run(program: str, stdin: str = "", limits: Limits = Limits()) -> Outcome:
    """Runs a Python program to its end, or to one of its limits.

    Raises:
        SandboxUnavailable: this machine lets no program be shut in.
    """
    with _memory_file(stdin.encode(errors="replace")) as given, started(program, limits, stdin=given) as running:
        reason, outputs = watch([running], limits)
        return Outcome(reason or running.reason(), outputs["stdout"], outputs["stderr"])


@contextlib.contextmanager
def started(
    program: str, limits: Limits, *, stdin: int, stdout: int | None = None, name: str = ""
) -> Iterator[Running]:
    """Starts a program, and ends it with the context.

    Args:
        program: its source.
        limits: its limits; that of time is kept by `watch`.
        stdin: descriptor that it reads.
        stdout: descriptor that it writes; None: a pipe, one of its outputs.
        name: what stands before the names of its outputs.
    """
    report, reporting = os.pipe()
    errors, erring = os.pipe()
    outputs = {f"{name}stderr": errors}
    closed_here = [reporting, erring]
    if stdout is None:
        outputs[f"{name}stdout"], stdout = os.pipe()
        closed_here.append(stdout)
    try:
        with _memory_file(program.encode(errors="replace")) as source:
            process = lifeline.start(
                _command(limits, source, reporting),
                stdin=stdin,
                stdout=stdout,
                stderr=erring,
                pass_fds=(source, reporting),
                env={},
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        for descriptor in (report, *outputs.values()):
            os.close(descriptor)
        raise
    finally:
        for descriptor in closed_here:
            os.close(descriptor)
    running = Running(process, report, outputs)
    try:
        yield running
    finally:
        running.close()


def watch(programs: Sequence[Running], limits: Limits, until: str = "") -> tuple[str, dict[str, bytes]]:
    """Reads what programs write until all have closed their outputs, or one has passed a limit.

    Args:
        programs: what runs.
        limits: those of each; the time is that of all.
        until: name of the one output that matters: reading ends with its end.

    Returns:
        The limit that was passed, or nothing; and the outputs by name. Programs may go on.
    """
    read: dict[str, bytearray] = {}
    deadline = time.monotonic() + limits.seconds
    with selectors.DefaultSelector() as selector:
        for running in programs:
            for name, descriptor in running.outputs.items():
                read[name] = bytearray()
                selector.register(descriptor, selectors.EVENT_READ, name)
        passed = ""
        while not passed and selector.get_map() and (not until or until in _open(selector)):
            for key, _ in selector.select(_LOOK):
                chunk = os.read(key.fd, 65536)
                read[key.data] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                elif len(read[key.data]) > limits.output_bytes:
                    passed = "output"
            if time.monotonic() > deadline:
                passed = "time"
            elif any(running.resident_bytes() > limits.memory_bytes for running in programs):
                passed = "memory"
    return passed, {name: bytes(data[: limits.output_bytes]) for name, data in read.items()}


def _open(selector: selectors.BaseSelector) -> set[str]:
    return {key.data for key in selector.get_map().values()}


def _command(limits: Limits, source: int, report: int) -> list[str]:
    visible, links = _visible()
    if not any(path.startswith("/tmp/") for _, path in visible):  # else it is a folder on the interpreter's way
        links = [*links, (inside.BOX, "/tmp")]
    bwrap = None if os.geteuid() == 0 else shutil.which("bwrap")
    spec = {
        "enter": bwrap is None,
        "parent": os.getpid(),
        "number": next(_numbers) % 100_000_000,
        "visible": [] if bwrap else visible,
        "links": [] if bwrap else links,
        "source": source,
        "report": report,
        "memory_bytes": limits.memory_bytes,
        "cpu_seconds": int(limits.seconds) + 1,
        "processes": limits.processes,
        "folder_bytes": limits.folder_bytes,
        "command": [sys.executable, "-I", "-B", f"{inside.BOX}/program.py"],
        "environment": _ENVIRONMENT,
    }
    own = [sys.executable, "-I", "-S", "-B"]
    if bwrap is None:
        return [*own, inside.__file__, json.dumps(spec)]
    binds = [argument for source_path, path in visible for argument in ("--ro-bind", source_path, path)]
    binds += [argument for target, path in links for argument in ("--symlink", target, path)]
    box = ["--size", str(limits.folder_bytes), "--tmpfs", inside.BOX]
    alone = ["--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--chdir", inside.BOX]
    here = ["--ro-bind", inside.__file__, "/inside.py", "--dev-bind", "/dev/null", "/dev/null"]
    return [bwrap, *alone, *binds, *here, *box, "--remount-ro", "/", *own, "/inside.py", json.dumps(spec)]


_ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "HOME": inside.BOX,
    "TMPDIR": inside.BOX,
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # each thread counts as a process, and takes address space
    "OMP_NUM_THREADS": "1",
}


def _visible() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns what the program sees of this machine, read-only: (real path, path), and links as (target, path)."""
    links = [(os.readlink(path), path) for path in _SYSTEM if os.path.islink(path)]
    real = os.path.realpath(sys.executable)
    # of an interpreter's folder what is its own alone: that of ~/bin/python3 is a home
    prefixes = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(real)))
    wanted = [*_SYSTEM, *(os.path.join(prefix, part) for prefix in prefixes for part in _INTERPRETER)]
    linked = {path for _, path in links}
    visible: list[tuple[str, str]] = []
    for path in sorted({path for path in wanted if os.path.exists(path)} - linked):
        if not any(path == known or path.startswith(f"{known}/") for _, known in visible):
            visible.append((os.path.realpath(path), path))
    return visible, links


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0  # it has ended


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """Yields a descriptor that reads the content, and cannot write it."""
    writing = os.memfd_create("given")
    try:
        with os.fdopen(os.dup(writing), "wb") as file:
            file.write(content)
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY)
    finally:
        os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)
