"""Runs a Python module in a child process that answers calls over a socket: both ends of it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import io
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sidecar.workers import lifeline
from sidecar.workers.rpc import receive, send

CANCEL = "cancel"
"""In place of a method: the caller of this number has cancelled the call."""


class ChildEnded(RuntimeError):
    """The process has ended, or was killed, before it answered.

    Attributes:
        alone: whether it ended by itself during its only call, which is therefore the cause.
    """

    def __init__(self, why: str, alone: bool = False) -> None:
        super().__init__(why)
        self.alone = alone


class ChildProcess:
    """Runs ``python -m module`` in a child, which calls `serve`. Its calls are made on one event loop.

    It leads a group of its own: Ctrl-C is its parent's to handle, and what it has started is killed with it.
    """

    def __init__(
        self,
        module: str,
        *,
        log: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Starts the child.

        Args:
            module: name.
            log: file that takes what it prints; None or empty for nowhere.
            environment: variables that are set before anything is imported there.
            on_end: is called when it has ended by itself.
        """
        self._log = str(log or "")
        self._on_end = on_end
        self._sock, theirs = socket.socketpair()
        with theirs, _output(log) as output:
            self.process: subprocess.Popen[bytes] = lifeline.start(
                [*lifeline.python_module(module), str(theirs.fileno()), str(os.getpid())],
                env={**os.environ, **lifeline.import_path(), "PYTHONUNBUFFERED": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._failure: str | None = None
        self._connecting: asyncio.Future[asyncio.StreamWriter] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self.process.poll() is None

    async def ended(self) -> str:
        """Waits for the end of the process; returns which it was, and its code."""
        code = await asyncio.to_thread(self.process.wait)
        return f"{self.process.pid} ended with code {code}"

    async def call(self, method: str, *arguments: Any) -> Any:
        """Returns the result of the method in the child. Cancelling this cancels the method.

        Raises:
            ChildEnded: the process is gone.
            Exception: what the method raised; a RuntimeError with its words where it cannot be pickled.
        """
        writer = await self._connected()
        if self._failure is not None:
            raise ChildEnded(self._failure)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            send(writer, (number, method, arguments))
            return await answer
        except asyncio.CancelledError:
            if self._failure is None:
                send(writer, (number, CANCEL, ()))
            raise
        finally:
            self._waiting.pop(number, None)

    def kill(self, why: str) -> bool:
        """Kills the process and its group at once, and fails all calls with ``why``; false where it had ended."""
        first = self._failure is None
        self._fail(why)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return first

    async def close(self, why: str = "it was closed") -> None:
        """Kills the process and waits for its end."""
        self.kill(why)
        await asyncio.to_thread(self.process.wait)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        else:
            self._sock.close()

    async def _connected(self) -> asyncio.StreamWriter:
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
        return await asyncio.shield(self._connecting)  # who leaves meanwhile would close the socket of all

    async def _connect(self) -> asyncio.StreamWriter:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._reading = asyncio.ensure_future(self._read(reader))
        return self._writer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            fault = await self._hand_on(reader)
            under_way = [answer for answer in self._waiting.values() if not answer.done()]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its own children may have outlived it
            if self._on_end is not None and self._failure is None:
                self._on_end()
            code = await asyncio.to_thread(self.process.wait)
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            end = f"was ended: {fault}" if fault else f"ended {how}{_last_log_line(self._log)}"
            why = f"its process {self.process.pid} {end}"
            self._fail(why, under_way if len(under_way) == 1 else ())
        finally:
            if self._failure is None:
                self.kill("nobody reads its answers any more")

    async def _hand_on(self, reader: asyncio.StreamReader) -> str:
        """Hands answers to who waits for them until there are no more; returns what was wrong with the last one."""
        try:
            while True:
                number, good, value = await receive(reader)
                answer = self._waiting.get(number)
                if answer is None or answer.done():
                    continue
                if good:
                    answer.set_result(value)
                else:
                    answer.set_exception(value)
        except EOFError:
            return ""
        except Exception as error:  # whatever the classes of an answer raise when it is unpickled
            return f"an answer of it could not be read: {type(error).__name__}: {error}"

    def _fail(self, why: str, blamed: Collection[asyncio.Future[Any]] = ()) -> None:
        if self._failure is not None:
            return
        self._failure = why
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChildEnded(why, alone=answer in blamed))


def serve(handle: Callable[..., Awaitable[Any]]) -> None:
    """Answers the calls of the parent until it is gone: the main program of a `ChildProcess`.

    Args:
        handle: is called with the name of a method and its arguments, for each call in a task of its own. What it
            returns can be pickled.
    """
    sock, parent = sys.argv[1:]
    lifeline.hold(int(parent))
    asyncio.run(_serve(socket.socket(fileno=int(sock)), handle))


def redirect_output(log: str) -> None:
    """Redirects what this process prints to a file from now on; empty for nowhere."""
    file = Path(log or os.devnull)
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    finally:
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what a process printed before it was killed is in the log


async def _serve(sock: socket.socket, handle: Callable[..., Awaitable[Any]]) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    calls: dict[int, asyncio.Task[None]] = {}
    with contextlib.suppress(EOFError):
        while True:
            number, method, arguments = await receive(reader)
            if method != CANCEL:
                calls[number] = asyncio.ensure_future(_answer(writer, number, handle(method, *arguments)))
                calls[number].add_done_callback(functools.partial(_forget, calls, number))
            elif (task := calls.get(number)) is not None:
                task.cancel()


async def _answer(writer: asyncio.StreamWriter, number: int, work: Awaitable[Any]) -> None:
    try:
        send(writer, (number, True, await work))
    except Exception as error:
        send(writer, (number, False, sendable(error)))


def sendable(error: Exception) -> Exception:
    """Returns an error itself where it can be pickled and read again, else its words."""
    try:
        pickle.loads(pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _forget(calls: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    calls.pop(number, None)


def _output(log: str | Path | None) -> contextlib.AbstractContextManager[Any]:
    if not log:
        return contextlib.nullcontext(subprocess.DEVNULL)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    return open(log, "ab")


def _last_log_line(log: str) -> str:
    if not log:
        return ""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        last = collections.deque((line.strip() for line in file if line.strip()), maxlen=1)
        if last:
            return f"; {log} ends: {last[0].decode(errors='replace')[:300]}"
    return f"; see {log}"
