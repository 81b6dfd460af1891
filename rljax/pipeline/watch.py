"""Follows a run from another process: by its metrics, and by what its ledger says of its processes. Writes nothing."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljax.ledger.backend import Backend, backend_at
from rljax.ledger.condition import Condition, condition
from rljax.ledger.database import Database, LedgerError, ledger_exists
from rljax.ledger.run_spec import RunSpec
from rljax.observe.flat_rewards import flat_streaks
from rljax.observe.metrics import MetricsReader, Row
from rljax.observe.progress import Progress

PERIOD = 1.0
"""Seconds between looks."""


@dataclass(frozen=True)
class Look:
    """A run at one moment.

    Attributes:
        rows: of its ``metrics.jsonl``, by step.
        spec: what its processes agreed on; None where the ledger was never read.
        now: what it is doing; None where the ledger cannot be read.
        waits: what it waits for, which may be the ledger; None if nothing.
        over: how it ended; None while it goes on.
        warning: what somebody should look at; None if nothing is.
    """

    rows: list[Row]
    spec: RunSpec | None
    now: Condition | None
    waits: str | None
    over: str | None
    warning: str | None

    @property
    def failed(self) -> bool:
        """True where it cannot go on."""
        return self.now is not None and self.now.failure is not None

    @property
    def step(self) -> int:
        """Batches completed, as of the metrics."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def began(self) -> float:
        """Monotonic seconds at which its newest life began; of one that is over, as if that had been now."""
        first, last = (self.rows[at].get("timestamp") if self.rows else None for at in (0, -1))
        begin = first if self.now is None or self.now.began is None else self.now.began
        end = last if self.over and last else time.time()
        return time.monotonic() - max(end - (begin or end), 0.0)


class Watcher:
    """Looks at a run directory; any one thread at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._metrics = MetricsReader(root)
        self._spec: RunSpec | None = None

    def look(self) -> Look:
        """Returns what the run is doing."""
        now, waits = self._condition()
        rows, over = self._metrics.rows(), None
        if now is not None and (now.failure or now.finished):
            over = f"this run has {f'failed: {now.failure}' if now.failure else 'ended'} (step {now.trained})"
            waits = None
        warning = None
        if self._spec is not None and rows:
            streaks = flat_streaks(rows, self._spec.group_size)
            warning = str(streaks[-1]) if streaks and streaks[-1].last == rows[-1]["step"] else None
        return Look(rows, self._spec, now, waits, over, warning)

    def close(self) -> None:
        """Closes the file of the metrics."""
        self._metrics.close()

    def _condition(self) -> tuple[Condition | None, str | None]:
        try:
            if not ledger_exists(backend := backend_in(self.root)):
                return None, "the run to begin: there is no ledger yet"
            with contextlib.closing(Database(backend, None)) as db:
                found = condition(db)
                self._spec = db.spec
        except LedgerError as error:
            return None, f"the ledger, which cannot be read: {error}"
        return found, found.waits


def watch(watcher: Watcher, progress: Progress, stays: bool, stop: threading.Event | None = None) -> Look:
    """Shows a run until it is over, or with ``stays`` until ``stop``; returns the last look."""
    stop = stop or threading.Event()
    said = None
    while True:
        look = watcher.look()
        steps = None if look.spec is None else look.spec.max_steps
        progress.follow(look.rows, steps, look.began, look.warning)
        progress.waiting(look.waits)
        progress.update(**_fields(look))
        if look.over != said:
            said = look.over
            progress.message(said or "this run goes on")
        if (look.over and not stays) or stop.wait(PERIOD):
            return look


def _fields(look: Look) -> dict[str, float | str | None]:
    spec, now = look.spec, look.now
    gauges: Mapping[str, float] = {} if now is None else now.gauges
    return {
        "bound": None if spec is None else float(spec.staleness_bound),
        "needed": None if spec is None or look.over else float(spec.batch_groups),
        "ready": None if now is None else float(now.ready),
        "alive": None if now is None else ", ".join(now.alive) or "nobody",
        "requests": f"{gauges['running']:.0f} of {gauges['slots']:.0f}" if gauges.get("slots") else None,
        "groups in flight": gauges.get("groups_in_flight"),
    }


def backend_in(root: Path) -> Backend:
    """Returns where the ledger of a run is, by its config; a password, which that does not have, is PostgreSQL's to
    find.
    """
    config = read_json(root / "config.json")
    ledger = config.get("ledger")
    schema = config.get("ledger_schema") or Path(config.get("run_dir") or root).absolute().name
    return backend_at(ledger and ledger.replace(":***@", "@"), schema, root, read_only=True)


def read_json(path: Path) -> dict[str, Any]:
    """Returns what a file of the run directory holds; nothing where it is not there yet."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
