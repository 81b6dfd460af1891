"""Protocol of launchers, which start an explorer beside the learner, and of the explorers that they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rljax.config.schema import Config
from rljax.ledger.database import Database
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.run_dir import RunDir


class Launched(Protocol):
    """An explorer that a launcher started, in a thread or a process."""

    error: BaseException | None
    """Error with which the explorer ended, once it has; None if it succeeded."""

    @property
    def alive(self) -> bool:
        """True while the explorer runs."""
        ...

    @property
    def waiting_for(self) -> str:
        """Reason for which the explorer waits, as text; empty while it does not wait."""
        ...

    def start(self) -> None:
        """Starts exploring."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Returns the sums over the explorer's engines, as of now or as last known."""
        ...

    def stop(self) -> None:
        """Asks the explorer to hand its claims back and end. Any thread, any signal handler."""
        ...

    def join(self, seconds: float) -> None:
        """Waits for the end of the explorer, so long at most."""
        ...

    def check(self) -> None:
        """Records in the ledger that the explorer failed, where that could not be written when it ended.

        Raises:
            LedgerError: it still cannot be written, and no other explorer lives.
        """
        ...

    def close(self) -> None:
        """Closes the explorer.

        Raises:
            TimeoutError: it did not end in time.
        """
        ...


class Launcher(Protocol):
    """Starts the explorer of a run; ``config.launcher`` names one."""

    def __call__(
        self, config: Config, run: RunDir, db: Database, model: Model, trace: Trace | NullTrace, *, needed: bool
    ) -> Launched:
        """Builds an explorer where the launcher places it; `Launched.start` starts it.

        ``needed`` says that the run cannot go on without it: its fault is the run's where no other explorer lives.
        """
        ...
