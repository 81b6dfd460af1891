"""Small makers for the ledger's tests: specs, groups, ledgers on a fast disk, a clock that tests turn."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
from sqlalchemy import Row, make_url, text

from rljax.ledger import claims, leases, processes, versions
from rljax.ledger.backend import Backend
from rljax.ledger.claims import Claim, TasksetSize
from rljax.ledger.database import Database
from rljax.ledger.leases import LeasedBatch, NoBatchYet
from rljax.ledger.postgres import PostgresSchema
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.ledger.transaction import Transaction
from rljax.trajectory import Group, TaskId, Trajectory

SHARED_MEMORY = Path("/dev/shm")


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def fast_directory() -> Path:
    """A new directory, in memory where the machine has such a place."""
    return Path(tempfile.mkdtemp(prefix="ledger", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))


def make_spec(alpha: float = 1.0, k: int = 1, b: int = 2, extra: int = 0, **changes: Any) -> RunSpec:
    """A spec with S at its default, ⌈α⌉ + k − 1, plus ``extra``."""
    fields: dict[str, Any] = {
        "seed": 0,
        "group_size": 1,
        "batch_groups": b,
        "alpha": alpha,
        "staleness_bound": math.ceil(Fraction(str(alpha))) + k - 1 + extra,
        "sync_interval": k,
        "max_steps": 1000,
        "total_epochs": None,
        "claim_timeout": 60.0,
    }
    return RunSpec(**{**fields, **changes})


def make_group(task: TaskId, token_versions: Sequence[int], prompt: int = 1) -> Group:
    """One trajectory, with one trained token of each version named, after an untrained prompt."""
    n = len(token_versions)
    trajectory = Trajectory(
        token_ids=np.arange(prompt + n, dtype=np.int32),
        loss_mask=np.arange(prompt + n) >= prompt,
        logprobs=np.full(prompt + n, -0.5, np.float32),
        versions=np.array([-1] * prompt + list(token_versions), np.int32),
        turns=np.array([[prompt, prompt + n]], np.int32),
        reward=1.0,
    )
    return Group(task, (trajectory,))


def store(db: Database, claim: Claim, group: Group) -> None:
    """Stores one group; raises why it is not kept."""
    (failure,) = claims.store(db, [(claim, group)])
    if failure is not None:
        raise failure


def sql(db: Database, statement: str, **values: Any) -> Sequence[Row]:
    """Runs one statement by hand, with ``:name`` for its values; the rows that it gives."""

    def body(tx: Transaction) -> Sequence[Row]:
        result = tx.execute(text(statement), values)
        return result.all() if result.returns_rows else []

    return db.write(body)


def spelled(place: Backend) -> str:
    """A place, for the command line of a child process; `place_of` reads it."""
    if isinstance(place, PostgresSchema):
        return json.dumps([place.url.render_as_string(hide_password=False), place.name])
    return json.dumps([str(cast(SqliteFile, place).path)])


def place_of(spelled: str) -> Backend:
    match json.loads(spelled):
        case [url, name]:
            return PostgresSchema(make_url(url), name)
        case [path]:
            return SqliteFile(Path(path))
    raise ValueError(spelled)


class LedgerBench:
    """A ledger with one explorer ``e`` and one taskset ``a``, driven by hand. Every step that should publishes."""

    def __init__(self, place: Backend, spec: RunSpec, size: int = 1000, learner: bool = True) -> None:
        self.clock = Clock()
        self.place = place
        self.db = Database(place, spec, self.clock)
        self.token = processes.register(self.db, "e", "explorer")
        claims.register_tasksets(self.db, [TasksetSize("a", size)])
        self.lineage = 0
        if learner:
            self.restart(0)

    def restart(self, version: int) -> None:
        """A learner starts from a checkpoint and republishes it."""
        self.lineage = leases.begin_lineage(self.db, version)
        self.publish(version)

    def publish(self, version: int, validate: bool = False) -> None:
        path = f"weights/v{version}-{self.lineage}"
        versions.announce(self.db, self.lineage, version, path, validate=validate)

    def claim(self, limit: int = 1000) -> list[Claim]:
        return list(claims.claim(self.db, "e", ["a"], limit).claims)

    def store(self, claim: Claim, *token_versions: int) -> None:
        """Stores a group with these token versions; the claim's own where none is named."""
        store(self.db, claim, make_group(claim.task, token_versions or [claim.version]))

    def lease(self) -> LeasedBatch | NoBatchYet:
        return leases.lease(self.db, self.lineage)

    def indices(self) -> list[int]:
        """Leases a batch, which must be there; the task indices in its order."""
        leased = self.lease()
        assert isinstance(leased, LeasedBatch), leased
        return [group.task.index for group in leased.groups]

    def trained(self, announce: bool = True, demonstrations: int | None = None) -> None:
        """Marks the leased batch trained, and announces its version where the sync interval says so."""
        shown = self.db.spec.demonstrations if demonstrations is None else demonstrations
        step = self.steps
        publishes = (step + 1) % self.db.spec.sync_interval == 0
        leases.mark_trained(self.db, self.lineage, step, publishes, shown)
        if publishes and announce:
            self.publish(step + 1)

    @property
    def steps(self) -> int:
        return int(sql(self.db, "SELECT trained FROM run")[0].trained)
