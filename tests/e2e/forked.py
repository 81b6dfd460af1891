"""Starts the program by forking a process that has imported it and done no more: from nothing a start takes three
seconds of CPU longer, and the tests make two hundred.

What is forked runs ``python -m rljax.main`` as Python does, in a process of its own. The pages of `docs/`, the wheel
and hosts are started from nothing: a module that is imported here already hides that nobody else imports it, which
`test_forked` looks for.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
LATE = ("RLJAX_FAILPOINTS", "PYTHONUNBUFFERED", "PYTEST_CURRENT_TEST", "XLA_FLAGS", "RAY_")
"""Beginnings of the variables that nothing reads while it is imported. Who differs in another starts from nothing."""


class Forked:
    """A process of the program, with what `subprocess.Popen` has for one that nobody writes to."""

    returncode: int | None = None

    def __init__(self, pid: int, ended: int) -> None:
        """``ended`` is the pipe into which its exit code comes."""
        self.pid = pid
        self._ended = os.fdopen(ended, "rb", buffering=0)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = int(self._ended.read(16) or b"-9")  # or who forks is dead
                    self._ended.close()
        return self.returncode


class _Server:
    """The process that is forked."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = early(env)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forked", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env=dict(env),
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self._socket.close)

    def serves(self, env: Mapping[str, str]) -> bool:
        return early(env) == self._env

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, out: IO[Any], error: IO[Any]) -> Forked:
        ended, writing = os.pipe()
        asked = json.dumps({"arguments": arguments, "env": env, "cwd": str(cwd)}).encode()
        socket.send_fds(self._socket, [asked], [out.fileno(), error.fileno(), writing])
        os.close(writing)
        return Forked(int(self._socket.recv(16)), ended)


_servers: dict[int, _Server] = {}
_turns = itertools.count()


def start(arguments: Sequence[str], env: Mapping[str, str], cwd: Path, out: IO[Any], error: IO[Any]) -> Forked | None:
    """Starts ``python -m rljax.main`` with the arguments; returns None where it has to be from nothing: in another
    environment, or for a learner of hosts, whose command imports little and starts the hosts itself.
    """
    if any("learner.hosts." in argument for argument in arguments) or "JAX_DISABLE_MOST_OPTIMIZATIONS" not in env:
        return None
    turn = (
        next(_turns) % 2
    )  # by turns, since a run and the next, which may have to equal it, hash otherwise in practice
    server = _servers.get(turn) or _servers.setdefault(turn, _Server(env))
    return server.fork(arguments, env, cwd, out, error) if server.serves(env) else None


def early(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be read while something is imported."""
    return {name: value for name, value in env.items() if not name.startswith(LATE)}


def serve(asking: socket.socket) -> None:
    """Forks for each request, and says of each process how it ended; ends with the one that asks."""
    selector = selectors.DefaultSelector()
    selector.register(asking, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not asking:
                pid, writing = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(writing, str(code).encode())
                os.close(writing)
                continue
            asked, handed, _, _ = socket.recv_fds(asking, 1 << 20, 3)
            if not asked:
                return
            with warnings.catch_warnings(action="ignore"):  # JAX's: it would be right, had anything been computed
                pid = os.fork()
            *streams, writing = handed
            if pid == 0:
                become(streams, **json.loads(asked))
            asking.send(str(pid).encode())
            for descriptor in streams:
                os.close(descriptor)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, writing))


def become(streams: Sequence[int], arguments: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Makes this process what Python is as it begins to run the program."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    setproctitle(" ".join([sys.executable, "-m", "rljax.main", *arguments]))  # while the environment is the first one
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.stdout = sys.__stdout__ = opened(1, sys.stdout, env)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = opened(2, sys.stderr, env)  # type: ignore[misc]
    sys.path[0] = cwd
    sys.argv = ["-m", *arguments]
    sys.orig_argv[:] = [sys.executable, "-m", "rljax.main", *arguments]
    runpy._run_module_as_main("rljax.main")  # type: ignore[attr-defined]


def opened(number: int, before: Any, env: Mapping[str, str]) -> io.TextIOWrapper:
    """Returns a standard stream as Python opens it when it starts: what it buffers depends on what it is."""
    at_once = bool(env.get("PYTHONUNBUFFERED"))
    buffer: Any = os.fdopen(number, "wb", 0 if at_once else -1, closefd=False)
    lines = not at_once and (number == 2 or buffer.isatty())
    return io.TextIOWrapper(buffer, before.encoding, before.errors, "\n", lines, at_once)


if __name__ == "__main__":
    import gc
    import logging

    from setproctitle import setproctitle

    import rljax
    from rljax import commands
    from rljax.pipeline.assemble import checks  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and for what runs
    gc.disable()
    rljax.load_config("quickstart")  # finds what is registered
    commands.import_modules("both")
    from transformers import PreTrainedTokenizerFast  # noqa: F401

    logging.root.handlers.clear()  # of libraries that found none: the program sets its own before it imports them
    gc.freeze()
    gc.enable()
    serve(socket.socket(fileno=int(sys.argv[1])))
