"""Which checkpoint a learner goes on from where some are damaged: real checkpoints and ledger, a stub of a learner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.learner.checkpoints import CheckpointError, Checkpoints
from rljax.ledger import leases, processes, schema
from rljax.ledger.database import Database, RunSpec, StaleWriterError
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.assemble import learner as build
from rljax.pipeline.assemble.learner import StepRunner
from rljax.pipeline.train import Outputs, Trainer
from tests.learner.states import abstract, make_state
from tests.learner.test_checkpoints import flip, holding

CONFIG = Config(
    rollout_batch_size=16,
    group_size=8,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)


class StubLearner:
    def __init__(self) -> None:
        self.steps = 0
        self.config = CONFIG

    def load(self, tensors: object, adapter: object) -> None:
        """Begins with the model as it came, at step 0."""

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


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The ledger that the checkpoints belong to."""
    opened = Database(SqliteFile(tmp_path / "ledger.db"), RunSpec.of(CONFIG))
    leases.begin_lineage(opened, 0)
    opened.write(lambda tx: tx.execute(update(schema.run).values(trained=6)))
    monkeypatch.setattr(build, "Learner", lambda *_, **__: StubLearner())
    monkeypatch.setattr(build, "stored_tensors", lambda directory: directory)
    yield opened
    opened.close()


def started(db: Database, checkpoints: Checkpoints, life: str | None = None) -> int:
    """Resumes a learner and begins its lineage; returns the step that it goes on from."""
    nothing: Any = None
    model: Any = SimpleNamespace(architecture=nothing, directory=nothing, adapter=nothing)
    learner, damaged = build.resume_learner(CONFIG, model, db, checkpoints)
    learner.architecture = SimpleNamespace(vocab_size=10)  # type: ignore[assignment]
    outputs = Outputs(nothing, checkpoints, nothing, nothing)
    stop, check = threading.Event(), lambda: None
    trainer = Trainer(CONFIG, db, StepRunner(learner, None), outputs, dict, stop, check, life, damaged)
    with pytest.raises(AttributeError, match="write_config"):  # what comes next has no run directory here
        next(trainer.steps())
    return learner.steps


def test_the_newest_whole_one_is_taken_in_silence(db: Database, checkpoints: Checkpoints, caplog: Any) -> None:
    damage(checkpoints, 2)
    assert started(db, checkpoints) == 6
    assert not caplog.records


def test_damaged_ones_are_named_and_set_aside_and_the_next_older_is_taken(
    db: Database, checkpoints: Checkpoints, caplog: Any
) -> None:
    damage(checkpoints, 4)
    damage(checkpoints, 6)
    assert started(db, checkpoints) == 2
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" in ")[0] for line in said] == ["the checkpoint of step 6", "the checkpoint of step 4"]
    for line in said:
        assert "params.embedding is corrupted" in line
        assert "resumed from step 2" in line
        assert "\n" not in line
    assert checkpoints.committed() == [2]
    assert (checkpoints.directory / "6.damaged").is_dir()


def test_where_none_is_whole_nothing_is_touched_and_the_newest_is_named(db: Database, checkpoints: Checkpoints) -> None:
    for step in (2, 4, 6):
        damage(checkpoints, step)
    with pytest.raises(CheckpointError, match=r"of step 6 .* is damaged: .*; no whole checkpoint is left: .*run_dir$"):
        started(db, checkpoints)
    assert checkpoints.committed() == [2, 4, 6]


def test_without_a_checkpoint_the_model_is_as_it_came(tmp_path: Path, db: Database) -> None:
    assert started(db, Checkpoints(tmp_path / "none", keep=1)) == 0


def test_what_a_successor_wrote_in_place_of_a_damaged_one_is_not_set_aside(
    db: Database, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer is stopped once it has restored the older checkpoint; another replaces it and trains past it."""
    damage(checkpoints, 6)
    life = processes.register(db, "trainer", "trainer")
    restore = StubLearner.restore

    def restore_and_be_replaced(learner: StubLearner, source: Checkpoints, step: int) -> None:
        restore(learner, source, step)
        processes.leave(db, "trainer", life)
        processes.register(db, "trainer", "trainer")
        leases.begin_lineage(db, step)
        checkpoints.save(6, make_state(6), {"lineage": 2})
        checkpoints.wait()

    monkeypatch.setattr(StubLearner, "restore", restore_and_be_replaced)
    with pytest.raises(StaleWriterError, match="has taken over"):
        started(db, checkpoints, life)
    assert checkpoints.committed() == [2, 4, 6]
    assert checkpoints.metadata(6) == {"lineage": 2}
