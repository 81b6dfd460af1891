"""Runs engines in child processes of this one: the engine launcher of `launcher=local`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from sidecar.hosting.remote import RemoteEngine
from sidecar.hosting.spec import EngineSpec
from sidecar.protocol import EngineError
from sidecar.workers.child_process import ChildEnded, ChildProcess

END_SECONDS = 30.0
"""Seconds that a process has to end by itself after `close`."""


class ProcessEngine(RemoteEngine):
    """Calls an engine in a child process. Implements `sidecar.protocol.Engine`, on the event loop of its start."""

    def __init__(self, spec: EngineSpec) -> None:
        """Starts the process; `open` comes next."""
        self.name = spec.name
        self._spec = spec
        self._child = ChildProcess("sidecar.hosting.local_main", log=spec.log, environment=spec.environment)
        self.process = self._child.process

    async def open(self) -> None:
        """Opens the engine in the process.

        Raises:
            EngineError: the engine cannot be opened there.
        """
        await self._call("open", self._spec)

    async def close(self) -> None:
        """See `Engine.close`. Ends the process, by force if it does not end by itself."""
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._call("close")
        await self._child.close()

    def kill(self, why: str) -> None:
        """Ends the process and its workers at once; pending calls fail with ``why``."""
        self._child.kill(why)

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._child.call(method, *arguments)
        except ChildEnded as error:
            raise EngineError(f"{self.name}: {error}") from None


class LocalEngineLauncher:
    """Starts engines as child processes. Implements `sidecar.hosting.spec.EngineLauncher`."""

    def __init__(self) -> None:
        self._engines: list[ProcessEngine] = []

    async def start(self, spec: EngineSpec) -> ProcessEngine:
        """See `EngineLauncher.start`."""
        engine = ProcessEngine(spec)
        self._engines = [e for e in self._engines if e.process.poll() is None] + [engine]
        try:
            await engine.open()
        except BaseException:
            engine.kill("it did not start")
            raise
        return engine

    def platform(self, index: int) -> None:
        """See `EngineLauncher.platform`: a child process may use what this one may."""

    def close(self) -> None:
        """See `EngineLauncher.close`."""
        for engine in self._engines:
            engine.kill("its engine launcher was closed")
            engine.process.wait()
        self._engines.clear()
