"""The load of a run: its ledger's place, how much is in flight, and how fast engines and learner are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sqlalchemy import make_url

from bench.steady.meters import CountedDatabase
from rljax.ledger.backend import Backend
from rljax.ledger.postgres import PostgresSchema
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.simulate.workload import Attempts
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory

GROUP_SIZE = 8
ALPHA = 7.0
"""Batches that generation runs ahead of the one in training: an eighth of the credit is a batch."""
EXTRA_STALENESS = 4
"""Steps of staleness beyond the least that this α needs: room for stragglers to be overtaken."""
TOKENS, DEVIATION, MOST = 256.0, 192.0, 2048.0
"""Of a response: mean and standard deviation of the log-normal distribution, and the limit."""
SAVE_STEPS, KEPT = 8, 2
"""Steps between checkpoints, and checkpoints kept: of steps before the oldest of them the payloads go."""
FOREVER = 10**9
"""Steps of a run that is ended from outside."""


@dataclass(frozen=True)
class Load:
    """A run's load. Sent to each of its processes.

    Attributes:
        ledger: URL of a PostgreSQL database, or the path of an SQLite file.
        schema: the ledger's schema in that database.
        directory: the run directory, where diaries are written.
        in_flight: the credit, in trajectories.
        rate: trajectories a second that engines sample together when so many are in flight.
        explorers: number of processes.
        engines: number over all of them.
        sample_seconds: between the lines of a diary.
    """

    ledger: str
    schema: str
    directory: Path
    in_flight: int
    rate: float
    explorers: int
    engines: int
    sample_seconds: float

    @property
    def batch_groups(self) -> int:
        """Groups of a batch."""
        return max(1, round(self.in_flight / GROUP_SIZE / (1 + ALPHA)))

    @property
    def seconds(self) -> float:
        """Mean seconds of a trajectory, by Little's law."""
        return self.in_flight / self.rate

    @property
    def train_seconds(self) -> float:
        """Seconds that a step takes: half of those in which a batch is sampled."""
        return self.batch_groups * GROUP_SIZE / self.rate / 2

    @property
    def spec(self) -> RunSpec:
        """The settings that the run's processes share."""
        return RunSpec(
            seed=0,
            group_size=GROUP_SIZE,
            batch_groups=self.batch_groups,
            alpha=ALPHA,
            staleness_bound=int(ALPHA) + EXTRA_STALENESS,
            sync_interval=1,
            max_steps=FOREVER,
            total_epochs=None,
            claim_timeout=60.0,
        )

    def place(self) -> Backend:
        """Returns the place of the ledger, for this process."""
        if "://" in self.ledger:
            return PostgresSchema(make_url(self.ledger), self.schema)
        return SqliteFile(Path(self.ledger))

    def open(self) -> CountedDatabase:
        """Opens the ledger, for this process."""
        return CountedDatabase(self.place(), self.spec)


@dataclass(frozen=True)
class Sampled(Attempts):
    """Attempts whose tokens and log-probabilities do not compress: a ledger has to keep them whole."""

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`."""
        made = await super().run(task, attempt, pool)
        rng, n = np.random.default_rng(attempt.seed(task, 1)), len(made.token_ids)
        ids = rng.integers(0, 32_000, n, dtype=np.int32)
        return replace(made, token_ids=ids, logprobs=rng.random(n, np.float32) * made.loss_mask)
