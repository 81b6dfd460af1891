"""What a run directory keeps of the configs that a run was trained with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.ledger.database import StaleWriterError
from rljax.pipeline.run_dir import RunDir

DIGITS = TasksetConfig(source="reverse_digits")
CONFIG = Config(max_steps=20, seed=3, tasks=TasksConfig(train={"digits": DIGITS}))


def unopposed() -> None:
    """No other learner has taken over."""


def max_steps_in(path: Path) -> int:
    return int(json.loads(path.read_text())["max_steps"])


def begun(path: Path) -> RunDir:
    run = RunDir.create(replace(CONFIG, run_dir=str(path)))
    assert run.write_config(CONFIG, 0, unopposed) == []
    return run


def test_a_resume_tells_what_it_changes_and_keeps_what_was(tmp_path: Path) -> None:
    run = begun(tmp_path)
    tasks = TasksConfig(train={"digits": replace(DIGITS, weight=2.0)})
    changed, changes = (
        replace(CONFIG, max_steps=30, tasks=tasks),
        [
            "max_steps 20 -> 30",
            "tasks.train.digits.weight 1.0 -> 2.0",
        ],
    )
    assert run.changes(changed) == changes
    assert run.write_config(changed, 18, unopposed) == changes
    assert run.changes(changed) == []
    assert max_steps_in(run.config) == 30
    assert max_steps_in(tmp_path / "config.step-18.json") == 20


def test_what_has_made_the_checkpoint_is_kept_through_further_changes(tmp_path: Path) -> None:
    run = begun(tmp_path)
    for steps in (30, 40):  # the first of these ends before a checkpoint
        run.write_config(replace(CONFIG, max_steps=steps), 18, unopposed)
    assert max_steps_in(tmp_path / "config.step-18.json") == 20
    assert run.write_config(replace(CONFIG, max_steps=40), 25, unopposed) == []
    assert not (tmp_path / "config.step-25.json").exists()


def test_keys_that_come_and_go_are_told(tmp_path: Path) -> None:
    run = begun(tmp_path)
    both = TasksConfig(train={"digits": DIGITS, "more": DIGITS})
    assert "tasks.train.more.weight unset -> 1.0" in run.write_config(replace(CONFIG, tasks=both), 5, unopposed)
    assert "tasks.train.more.weight 1.0 -> unset" in run.write_config(CONFIG, 6, unopposed)


def test_a_learner_that_was_replaced_leaves_the_config_of_its_successor(tmp_path: Path) -> None:
    run = begun(tmp_path)

    def replaced() -> None:
        raise StaleWriterError("another trainer has taken over")

    with pytest.raises(StaleWriterError):
        run.write_config(replace(CONFIG, max_steps=30), 18, replaced)
    assert max_steps_in(run.config) == 20
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["config.json"]


def test_a_torn_config_is_replaced(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.config.write_text('{"max_st')
    assert run.write_config(CONFIG, 18, unopposed) == []
    assert max_steps_in(run.config) == 20
