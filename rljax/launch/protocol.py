"""What starts an explorer beside the learner, and what is known of the explorer that was started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rljax.config.schema import Config
from rljax.ledger.database import Database
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.run_dir import RunDir


class Launched(Protocol):
    """An explorer that somebody else runs."""

    error: BaseException | None
    """What it ended with, once it has; None for a good end."""

    @property
    def alive(self) -> bool:
        """Whether it explores."""
        ...

    @property
    def waiting_for(self) -> str:
        """What it waits for, for people; empty while it does not."""
        ...

    def start(self) -> None:
        """Starts exploring."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Sums over its engines, as of now or as last known."""
        ...

    def stop(self) -> None:
        """Asks it to hand its claims back and end. Any thread, any signal handler."""
        ...

    def join(self, seconds: float) -> None:
        """Waits for its end, so long at most."""
        ...

    def check(self) -> None:
        """Tells the ledger that it has ended by a fault, where that could not be told when it ended.

        Raises:
            LedgerError: it still cannot be told, and nobody is left who explores.
        """
        ...

    def close(self) -> None:
        """Ends it.

        Raises:
            TimeoutError: it did not end in time.
        """
        ...


class Launcher(Protocol):
    """What ``config.launcher`` names."""

    def __call__(
        self, config: Config, run: RunDir, db: Database, model: Model, trace: Trace | NullTrace, *, needed: bool
    ) -> Launched:
        """Makes an explorer where the launcher places it; `Launched.start` sets it going.

        ``needed`` says that the run cannot go on without it: its fault is the run's where no other explorer lives.
        """
        ...
