"""The faults of ARCHITECTURE.md that a user can cause, through the command line (promise P10)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import audit_of, query, run, warn_once


def rows_of(path: Path) -> Path:
    """A taskset of 64 rows of which the fifth is not JSON."""
    rows = [json.dumps({"question": f"{n:02d}", "answer": f"{n:02d}"[::-1]}) for n in range(64)]
    rows[4] = '{"question": "04", "answer'
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_corrupt_task_line_fails_at_the_start_or_is_skipped_and_counted(tmp_path: Path, cache: Path) -> None:
    source = f"tasks.train.digits.source={rows_of(tmp_path / 'tasks.jsonl')}"
    plain = ("tasks.train.digits.args={}", "max_steps=2", "eval_steps=None")
    failed = run(tmp_path / "fail", cache, source, *plain)
    assert failed.returncode != 0
    assert "tasks.jsonl:5" in warn_once(failed.stderr)
    skipped = run(tmp_path / "skip", cache, source, *plain, "tasks.on_bad_row=skip")
    assert skipped.returncode == 0, skipped.stderr
    assert "1 bad rows skipped" in skipped.stderr + skipped.stdout
    assert audit_of(tmp_path / "skip")["balanced"]


@pytest.mark.parametrize(
    ("reward", "limit", "reason", "words"),
    [
        ("raises_for_some", 30.0, "RewardError", "cannot score"),
        ("hangs_for_some", 1.0, "RewardTimeout", "faulty_rewards:hangs_for_some"),
    ],
)
def test_a_reward_that_fails_costs_its_own_group_alone(
    reward: str, limit: float, reason: str, words: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = run(
        tmp_path / "run",
        cache,
        f"tasks.train.digits.rewards=faulty_rewards:{reward}",
        f"rollout.reward_timeout={limit}",
        "rollout.max_retries=0",
        "max_steps=3",
        "eval_steps=None",
    )
    assert done.returncode == 0, done.stderr
    audit = audit_of(tmp_path / "run")
    assert audit["balanced"]
    assert audit["trained_twice"] == 0
    reasons = query(tmp_path / "run", "SELECT DISTINCT reason FROM groups WHERE state = 'dropped'")
    assert reasons == [(reason,)]
    assert words in done.stderr + done.stdout


def test_a_reward_that_always_fails_is_refused_and_nothing_is_left(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = run(tmp_path / "run", cache, "tasks.train.digits.rewards=faulty_rewards:raises", "eval_steps=None")
    assert done.returncode == 2
    line = warn_once(done.stderr)
    assert "tasks.train.digits.rewards='faulty_rewards:raises': fails when it is tried on the first tasks" in line
    assert "KeyError: 'tests'" in line
    assert line.endswith("; it printed last: no column of tests here")
    assert not (tmp_path / "run").exists()


def test_a_disk_that_refuses_is_one_line(cache: Path) -> None:
    refused = run(Path("/sys/rljax"), cache)  # refuses root too
    assert refused.returncode == 2
    assert "run_dir=/sys/rljax: cannot be written" in warn_once(refused.stderr)


def test_a_missing_model_is_one_line(tmp_path: Path, cache: Path) -> None:
    missing = run(tmp_path / "run", cache, f"model.path={tmp_path / 'model'}")
    assert missing.returncode == 2
    assert str(tmp_path / "model") in warn_once(missing.stderr)


def test_updates_that_are_not_finite_are_skipped_counted_and_end_the_run(tmp_path: Path, cache: Path) -> None:
    """A learning rate that overflows the weights at the first update makes every later gradient NaN."""
    done = run(
        tmp_path / "run",
        cache,
        "learner.optimizer.learning_rate=1e38",
        "learner.max_nonfinite_steps=3",
        "parity_bound=1e30",
        "eval_steps=None",
    )
    assert done.returncode == 1
    line = warn_once(done.stderr)
    assert "3 updates in a row had a loss or gradient that is not finite" in line
    assert "learner.optimizer.learning_rate" in line
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("policy/nonfinite_updates", 0) for row in rows) == 2, "the third ended the run"
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'pill bad">failed' in page
    assert "3 updates in a row had a loss or gradient that is not finite" in page
    assert "<h3>Learning rate</h3>" in page, "what there was of it is drawn"
