"""A run that was killed goes on with other settings: it says which, and its rows count every filtered group once."""

from __future__ import annotations

import json
from pathlib import Path

from program import audit_of, run

KEYS = ("eval_steps=none", "observe.progress=lines", "observe.report=false", "algorithm.filters=group_variance")


def test_what_a_resume_changes_is_said_and_filtered_groups_are_counted_once(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    killed = run(run_dir, cache, *KEYS, failpoint="train:6")
    assert killed.returncode != 0
    assert (run_dir / "checkpoints" / "4").exists()
    short = run(run_dir, cache, *KEYS, "max_steps=4")
    assert short.returncode == 0, short.stderr
    said = short.stdout.splitlines()
    assert "changed since the run last started: max_steps 6 -> 4" in said
    assert "nothing is left to train: 4 steps are done and max_steps=4; raise max_steps to go on" in said
    done = run(run_dir, cache, *KEYS, "max_steps=8", "learner.optimizer.grad_clip=0.5")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("changed since")]
    assert told == [
        "changed since the run last started: max_steps 4 -> 8",
        "changed since the run last started: learner.optimizer.grad_clip 1.0 -> 0.5",
    ]
    assert json.loads((run_dir / "config.step-4.json").read_text())["max_steps"] == 6
    assert json.loads((run_dir / "config.json").read_text())["max_steps"] == 8

    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9))
    filtered = audit_of(run_dir)["filtered"]["group_variance: equal rewards"]
    assert sum(row["rollout/filtered"] for row in rows) == filtered > 0
    assert [row["rollout/filtered"] for row in rows] == [row["rollout/filtered/group_variance"] for row in rows]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, cache: Path) -> None:
    run_dir, keys = tmp_path / "run", ("eval_steps=none", "observe.progress=lines", "observe.report=false")
    assert run(run_dir, cache, *keys, failpoint="train:6").returncode != 0
    checkpoint = run_dir / "checkpoints" / "4"
    arrays = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    (run_dir / "checkpoints" / "5").mkdir()  # somebody began to delete or to copy one
    done = run(run_dir, cache, *keys)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if " is damaged: " in line]
    assert f": the checkpoint of step 4 in {run_dir / 'checkpoints'} is damaged: " in told
    assert ": resumed from step 2; " in told
    audit = audit_of(run_dir)
    assert (audit["balanced"], audit["trained_twice"], audit["trained"]) == (True, 0, 24)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["4", "6"]
