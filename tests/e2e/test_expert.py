"""Demonstrations mixed in: the program imitates them, accounts for each, and goes on where it was killed."""

from __future__ import annotations

import json
from pathlib import Path

from lives import Role, live_to_the_end
from program import assert_balanced, audit_of, batches_of, query, run, undocumented, warn_once

MIX = (
    *("algorithm.pg_variant=mix", "algorithm.expert_data_ratio=0.25", "algorithm.minibatch_size=8"),
    *("eval_steps=none", "observe.report=false"),
)
"""16 sampled trajectories a step, and 5 demonstrations."""


def shown(tmp_path: Path, rows: int = 100) -> str:
    """Every two digits, reversed."""
    file = tmp_path / "shown.jsonl"
    lines = (json.dumps({"question": f"{n:02d}", "answer": f"{n:02d}"[::-1]}) for n in range(rows))
    file.write_text("".join(f"{line}\n" for line in lines))
    return f"tasks.expert.source={file}"


def test_a_run_that_mixes_is_killed_and_imitates_the_same(tmp_path: Path, cache: Path) -> None:
    keys = (shown(tmp_path), *MIX)
    whole = run(tmp_path / "whole", cache, *keys)
    assert whole.returncode == 0, whole.stderr
    assert "30 demonstrations; trained_twice 0" in whole.stdout
    killed = tmp_path / "killed"
    live_to_the_end(killed, cache, keys, {"both": Role((), ("train:4", "publish:3", ""))})
    for run_dir in (tmp_path / "whole", killed):
        assert_balanced(run_dir, groups=6 * 4)
        assert audit_of(run_dir)["demonstrations"] == 6 * 5
    assert batches_of(killed) == batches_of(tmp_path / "whole")
    rows = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["batch/demonstrations"]) for row in rows] == [(step, 5.0) for step in range(1, 7)]
    assert all(0.1 < row["policy/expert_fraction"] < 0.4 and row["policy/ratio_drift"] == 0 for row in rows)
    assert undocumented(killed) == []
    assert len(query(killed, "SELECT * FROM steps")) > 6, "some steps were trained again"

    replayed = run(killed, cache, *keys, "mode=replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "replayed to step 6: bit for bit the same" in replayed.stdout

    other = run(killed, cache, shown(tmp_path, rows=99), *MIX, "max_steps=8")
    assert "tasks.expert.source=" in warn_once(other.stderr)
    assert "other demonstrations, or another order" in other.stderr


def test_imitation_alone_learns_what_is_shown(tmp_path: Path, cache: Path) -> None:
    """Rewards are 0 at this size for a long time; what is learnt in 30 steps, the demonstrations taught."""
    keys = ("algorithm.pg_variant=sft", "algorithm.expert_data_ratio=0.75", "learner.optimizer.learning_rate=0.01")
    steps = ("max_steps=30", "eval_steps=30", "save_steps=30", "observe.report=false")
    done = run(tmp_path / "run", cache, shown(tmp_path), *keys, *steps)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    score = rows[-1]["val/digits/score"]
    assert score > 0.3, f"a random policy scores about 0.05: {score}"
    assert audit_of(tmp_path / "run")["demonstrations"] == 30 * 48
