"""Trainer and explorers in shells of their own (promise P4), with the embedded engine."""

from __future__ import annotations

from pathlib import Path

from program import run
from shells import explorer_first, explorers_come_and_go


def test_explorer_first_then_trainer(tmp_path: Path, cache: Path) -> None:
    explorer_first(tmp_path / "run", cache)


def test_explorers_come_and_go(tmp_path: Path, cache: Path) -> None:
    explorers_come_and_go(tmp_path / "run", cache)


def test_a_set_of_the_runs_name_with_other_tasks_is_one_line(tmp_path: Path, cache: Path) -> None:
    """Of equal size, so that only the tasks themselves tell."""
    few = ("eval_steps=none", "observe.report=false")
    assert run(tmp_path / "run", cache, *few, "max_steps=1", "tasks.train.digits.limit=50").returncode == 0
    own = ("explorer.tasksets.digits.source=add_numbers", "explorer.tasksets.digits.limit=50")
    other = run(tmp_path / "run", cache, *few, "max_steps=2", "mode=explore", "explorer.name=other", *own)
    assert other.returncode == 1
    lines = [line for line in other.stderr.splitlines() if line.startswith("rljax:")]
    assert len(lines) == 1, other.stderr
    assert "taskset digits: other problems, or another order" in lines[0]
    assert "give the set another name (explorer.tasksets)" in lines[0]
