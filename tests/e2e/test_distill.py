"""A run that learns from a teacher alone: no reward in its tasks, killed, resumed and replayed, α at 2."""

from __future__ import annotations

import json
from pathlib import Path

from lives import Role, live_to_the_end
from program import assert_balanced, audit_of, run, undocumented, warn_once

from rljax.config.schema import ModelConfig, TinyConfig
from rljax.models.tiny import make_tiny

ALONE = ("algorithm.adv_estimator=none", "tasks.train.digits.rewards=()", "async_generation_ratio=2")


def teacher(folder: Path, characters: str = "0123456789") -> Path:
    """A model of another family and size."""
    shape = TinyConfig(family="llama", hidden_size=48, intermediate_size=64, num_layers=2, characters=characters)
    return make_tiny(ModelConfig(path="tiny", tiny=shape), 3, folder)


def taught_by(directory: Path) -> tuple[str, ...]:
    return (*ALONE, f"algorithm.distill.teachers.big.path={directory}")


def test_a_run_without_rewards_is_killed_and_replayed_bit_for_bit(tmp_path: Path, cache: Path) -> None:
    keys, killed = taught_by(teacher(tmp_path / "teacher")), tmp_path / "killed"
    live_to_the_end(killed, cache, keys, {"both": Role((), ("train:4", "checkpoint:2", ""))})
    assert_balanced(killed, groups=24)
    assert audit_of(killed)["max_staleness"] <= 2
    rows = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["step"]]
    assert all(row["distill/big/reverse_kl"] == row["distill/big/digits/reverse_kl"] for row in trained)
    assert {row["reward/mean"] for row in trained} == {0.0}
    assert all(row["grad_norm"] > 0 for row in trained)
    assert undocumented(killed) == []
    replayed = run(killed, cache, *keys, "mode=replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "replayed to step 6: bit for bit the same" in replayed.stdout
    assert "Reverse KL to the teachers" in (killed / "report.html").read_text()


def test_a_teacher_of_other_tokens_is_refused_by_one_line(tmp_path: Path, cache: Path) -> None:
    refused = run(tmp_path / "run", cache, *taught_by(teacher(tmp_path / "teacher", "9876543210")))
    assert refused.returncode == 2
    said = warn_once(refused.stderr)
    assert "algorithm.distill.teachers.big: 10 tokens of the policy are not the teacher's, the first is " in said
    missing = run(tmp_path / "other", cache, *taught_by(tmp_path / "nowhere"))
    assert "algorithm.distill.teachers.big: model.path=" in warn_once(missing.stderr)
    assert not (tmp_path / "other").exists()
