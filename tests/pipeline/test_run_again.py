"""A run that is over is iterated again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.ledger import leases
from rljax.ledger.database import Database, RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.run_dir import RunDir
from rljax.run import Run

CONFIG = Config(
    rollout_batch_size=16,
    group_size=8,
    max_steps=1,
    total_epochs=2,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)


def test_that_there_is_nothing_left_to_train_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def opened(run: Run, config: Config) -> None:
        run.config, run.run_dir, run._steps = config, RunDir(tmp_path), None
        run._db = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(config))

    monkeypatch.setattr(Run, "__init__", opened)
    with Run(CONFIG) as run:
        leases.finish(run._db, leases.begin_lineage(run._db, 0))
        assert run.finished
        for _ in range(2):
            assert list(run) == []
    said = [record.getMessage() for record in caplog.records]
    assert (
        said
        == [f"{tmp_path}: this run is finished; raise max_steps (or total_epochs) to go on, or choose another run_dir"]
        * 2
    )
