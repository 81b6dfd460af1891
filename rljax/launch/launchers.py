"""Launchers: what starts an explorer beside the learner, by the name that ``config.launcher`` gives."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

from rljax.config.schema import Config
from rljax.launch.engine_launchers import check_ray
from rljax.launch.local import start_locally
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


def _start_on_ray(
    config: Config, run: RunDir, db: Database, model: Model, trace: Trace | NullTrace, *, needed: bool
) -> Launched:
    check_ray()
    from rljax.launch.ray_launcher import start_on_ray

    return start_on_ray(config, run, db, model, trace, needed=needed)


LAUNCHERS: Mapping[str, Launcher] = {"local": start_locally, "ray": _start_on_ray}


def learner_placement(config: Config) -> contextlib.AbstractContextManager[Config]:
    """What a learner without an explorer holds while it lives: the config, whose ``learner.devices`` are its own.

    With ``launcher=ray`` others ask the same cluster for accelerators: those of the learner are set aside there. In
    mode both the launcher does that.
    """
    if config.mode != "train" or config.launcher != "ray":
        return contextlib.nullcontext(config)
    check_ray()
    from rljax.launch.ray_launcher import learner_placed_on_ray

    return learner_placed_on_ray(config)
