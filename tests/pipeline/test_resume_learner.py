"""Which checkpoint a learner goes on from where some are damaged: real checkpoints and ledger, a stub of a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.learner.checkpoints import CheckpointError, Checkpoints
from rljax.ledger import leases
from rljax.ledger.database import Database, RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.assemble import learner as build
from tests.learner.test_checkpoints import abstract, flip, holding, make_state

CONFIG = Config(
    rollout_batch_size=16,
    group_size=8,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)


class StubLearner:
    def __init__(self) -> None:
        self.steps = 0

    def restore(self, checkpoints: Checkpoints, step: int) -> None:
        self.steps = int(checkpoints.restore(step, abstract(make_state(step))).step)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints", keep=9)
    for step in (2, 4, 6):
        made.save(step, make_state(step), {"lineage": 1})
    made.wait()
    return made


def damage(checkpoints: Checkpoints, step: int) -> None:
    flip(*holding(checkpoints.directory / str(step), make_state(step).params["embedding"]))


def resumed(tmp_path: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> int:
    db = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(CONFIG))
    leases.begin_lineage(db, 0)
    monkeypatch.setattr(build, "build_learner", lambda *_: StubLearner())
    nothing: Any = None
    learner = build.resume_learner(CONFIG, nothing, db, checkpoints)
    db.close()
    return learner.steps


def test_the_newest_whole_one_is_taken_in_silence(
    tmp_path: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    damage(checkpoints, 2)
    assert resumed(tmp_path, checkpoints, monkeypatch) == 6
    assert not caplog.records


def test_damaged_ones_are_named_and_set_aside_and_the_next_older_is_taken(
    tmp_path: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    damage(checkpoints, 4)
    damage(checkpoints, 6)
    assert resumed(tmp_path, checkpoints, monkeypatch) == 2
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" in ")[0] for line in said] == ["the checkpoint of step 6", "the checkpoint of step 4"]
    for line in said:
        assert "params.embedding is corrupted" in line
        assert "resumed from step 2" in line
        assert "\n" not in line
    assert checkpoints.committed() == [2]
    assert (checkpoints.directory / "6.damaged").is_dir()


def test_where_none_is_whole_nothing_is_touched_and_the_newest_is_named(
    tmp_path: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4, 6):
        damage(checkpoints, step)
    with pytest.raises(CheckpointError, match=r"of step 6 .* is damaged: .*; no whole checkpoint is left: .*run_dir$"):
        resumed(tmp_path, checkpoints, monkeypatch)
    assert checkpoints.committed() == [2, 4, 6]


def test_without_a_checkpoint_the_model_is_as_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resumed(tmp_path, Checkpoints(tmp_path / "none", keep=1), monkeypatch) == 0
