"""Handle of an explorer in a process of its own, for the learner's process."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from typing import Protocol

from rljax.config.fields import named_explorer
from rljax.config.schema import Config
from rljax.launch.protocol import Launched
from rljax.launch.shutdown import SHUTDOWN
from rljax.ledger import processes
from rljax.ledger.database import Database


class ExplorerEnded(RuntimeError):
    """An explorer in a process of its own failed."""


class ProcessHandle(Protocol):
    """Starts, stops and waits for the process of an explorer."""

    def start(self) -> None:
        """Starts the process, from the thread that waits for it."""
        ...

    def wait(self) -> str:
        """Waits until the process has ended; returns why, where it failed."""
        ...

    def stop(self) -> None:
        """Asks the explorer to hand its claims back and end. Any thread."""
        ...

    def kill(self) -> None:
        """Kills the process at once."""
        ...


class ExplorerProcess(Launched):
    """Watches an explorer in another process."""

    def __init__(
        self, db: Database, name: str, handle: ProcessHandle, needed: bool, held: contextlib.ExitStack | None = None
    ) -> None:
        """Takes the handle of the process; ``held`` is closed after the explorer."""
        super().__init__(db, name, needed)
        self._db = db
        self._handle = handle
        self._held = held or contextlib.ExitStack()
        self._stopping = threading.Event()

    def gauges(self) -> Mapping[str, float]:
        """Returns the gauges of the explorer's last heartbeat."""
        return processes.gauges(self._db, "explorer").get(self._name, {})

    def stop(self) -> None:
        """See `Launched`."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._handle.stop()

    def close(self) -> None:
        """See `Launched`; what did not end in time is killed."""
        with self._held:
            if self._thread.ident is None:
                return
            self.stop()
            self._thread.join(SHUTDOWN)
            if self._thread.is_alive():
                self._handle.kill()
                raise TimeoutError(f"{named_explorer(self._name)}: did not end within {SHUTDOWN:g} s and was killed")

    def _run(self) -> None:
        try:
            self._handle.start()
            if self._stopping.is_set():  # perhaps before there was anything to stop
                self._handle.stop()
            reason = self._handle.wait()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not reason or self._stopping.is_set():
            return
        message = f"{named_explorer(self._name)} ended: {reason}"
        self.error = ExplorerEnded(message)
        self._end.ended(message)


def explorer_config(config: Config) -> Config:
    """Returns the config of an explorer in a process of its own, from that of its run.

    An explorer reads each version where it was announced, so ``memory``, which is refused to who explores outside of
    the learner's Ray job, need not be named to it.
    """
    return dataclasses.replace(
        config,
        mode="explore",
        sync_method="checkpoint" if config.sync_method == "memory" else config.sync_method,
        explorer=dataclasses.replace(config.explorer, own_process=False),
        observe=dataclasses.replace(config.observe, progress="off"),
    )
