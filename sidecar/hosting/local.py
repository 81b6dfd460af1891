"""Engines in child processes of this one: what `launcher=local` starts."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from sidecar.hosting.remote import RemoteEngine
from sidecar.hosting.spec import EngineSpec, import_path
from sidecar.protocol import (
    EngineError,
)
from sidecar.workers.rpc import receive, send

END_SECONDS = 30.0
"""Seconds that a process has to end by itself after `close`."""


class ProcessEngine(RemoteEngine):
    """Speaks to an engine in a child process. Implements `sidecar.protocol.Engine`, on the event loop of its start."""

    def __init__(self, spec: EngineSpec, process: subprocess.Popen[bytes]) -> None:
        """Takes over a started process; `connect` comes next."""
        self.name = spec.name
        self.process = process
        self._spec = spec
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._failure: str | None = None

    async def connect(self, sock: socket.socket) -> None:
        """Hands over the spec and waits until the engine is open.

        Raises:
            EngineError: it cannot be opened there.
        """
        reader, self._writer = await asyncio.open_unix_connection(sock=sock)
        opened = self._waiting[0] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.ensure_future(self._read(reader))
        send(self._writer, self._spec)
        await opened

    async def close(self) -> None:
        """See `Engine.close`. Ends the process, by force if it does not end by itself."""
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._call("close")
        self.kill("it was closed")
        await asyncio.to_thread(self.process.wait)
        self._reading.cancel()
        self._writer.close()

    def kill(self, why: str) -> None:
        """Ends the process and its workers at once; whoever waits hears why."""
        self._fail(f"{self.name}: {why}")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self._failure is not None:
            raise EngineError(self._failure)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        send(self._writer, (number, method, arguments))
        try:
            return await answer
        except asyncio.CancelledError:
            if self._failure is None:
                send(self._writer, (number, "cancel", ()))
            raise
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            while True:
                number, good, value = await receive(reader)
                answer = self._waiting.get(number)
                if answer is None or answer.done():
                    continue
                if good:
                    answer.set_result(value)
                else:
                    answer.set_exception(value)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # workers of its own may have outlived it
        self._fail(f"{self.name}: {self._ending(await asyncio.to_thread(self.process.wait))}")

    def _ending(self, code: int) -> str:
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"its process {self.process.pid} ended {how}{_last_words(self._spec.log)}"

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EngineError(self._failure))


class LocalEngineLauncher:
    """Starts engines as child processes. Implements `sidecar.hosting.spec.EngineLauncher`."""

    def __init__(self) -> None:
        self._engines: list[ProcessEngine] = []

    async def start(self, spec: EngineSpec) -> ProcessEngine:
        """See `EngineLauncher.start`."""
        process, ours = _spawn(spec)
        engine = ProcessEngine(spec, process)
        self._engines = [e for e in self._engines if e.process.poll() is None] + [engine]
        try:
            await engine.connect(ours)
        except BaseException:
            engine.kill("it did not start")
            raise
        return engine

    def platform(self, index: int) -> None:
        """See `EngineLauncher.platform`: a child process may use what this one may."""

    def close(self) -> None:
        """See `EngineLauncher.close`."""
        for engine in self._engines:
            engine.kill("its house was closed")
            engine.process.wait()
        self._engines.clear()


def _spawn(spec: EngineSpec) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs, _output(spec.log) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sidecar.hosting.local_main", str(theirs.fileno())],
            env={**os.environ, **import_path(), **spec.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the parent's to handle, and the group is the engine's alone
        )
    return process, ours


def _output(log: str) -> Any:
    if not log:
        return contextlib.nullcontext(subprocess.DEVNULL)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    return open(log, "ab")


def _last_words(log: str) -> str:
    if not log:
        return ""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        last = collections.deque((line.strip() for line in file if line.strip()), maxlen=1)
        if last:
            return f"; {log} ends: {last[0].decode(errors='replace')[:300]}"
    return f"; see {log}"
