"""Demonstrations alone, before rewards: nothing is sampled for training, and what was learnt is where rewards begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lives import Role, live_to_the_end
from program import assert_balanced, audit_of, query, run, undocumented

ALONE = (
    *("algorithm.pg_variant=sft", "algorithm.expert_data_ratio=1"),
    *("rollout_batch_size=10", "observe.report=false"),
)
UNTASKED = """from tests.e2e import smallest

def get_config():
    config = smallest.get_config()
    with config.unlocked():
        config.tasks.train, config.tasks.validation = {}, {}
    return config
"""


def shown(tmp_path: Path) -> tuple[str, ...]:
    """Every two digits, reversed, as chats."""
    file = tmp_path / "shown.jsonl"
    chats = (
        [{"role": "user", "content": f"{n:02d}"}, {"role": "assistant", "content": f"{n:02d}"[::-1]}]
        for n in range(100)
    )
    file.write_text("".join(f"{json.dumps({'messages': chat})}\n" for chat in chats))
    return f"tasks.expert.source={file}", "tasks.expert.prompt_key=messages"


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_imitates_alone_is_killed_and_imitates_the_same(tmp_path: Path, cache: Path) -> None:
    keys = (*shown(tmp_path), *ALONE)
    killed = tmp_path / "killed"
    live_to_the_end(killed, cache, keys, {"both": Role((), ("train:4", "publish:2", "checkpoint:2", ""))})
    assert_balanced(killed, groups=0)
    assert (audit_of(killed)["demonstrations"], audit_of(killed)["steps"]) == (6 * 10, 6)
    assert query(killed, "SELECT * FROM groups") == []
    rows = rows_of(killed)
    assert [row["step"] for row in rows] == list(range(7))
    assert [row["step"] for row in rows if "val/digits/score" in row] == [0, 3, 6]
    sampled = ("reward/", "response/", "staleness/", "train/", "rollout/")
    assert [name for row in rows for name in row if name.startswith(sampled)] == []
    assert all(row["batch/trained_tokens"] > 0 and row["tokens_per_second"] > 0 for row in rows[1:])
    assert undocumented(killed) == []
    replayed = run(killed, cache, *keys, "mode=replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "replayed to step 6: bit for bit the same" in replayed.stdout


def test_epochs_end_it_and_without_validation_nothing_generates(tmp_path: Path, cache: Path) -> None:
    """100 demonstrations twice are 20 steps of 10, however many max_steps allows."""
    file = tmp_path / "untasked.py"
    file.write_text(UNTASKED)
    keys = (*shown(tmp_path), *ALONE, "max_steps=500", "total_epochs=2", "observe.progress=lines")
    done = run(tmp_path / "run", cache, *keys, config=file)
    assert done.returncode == 0, done.stderr
    assert "the demonstrations are exhausted: the run ends after 20 steps" in done.stdout
    assert audit_of(tmp_path / "run")["demonstrations"] == 200
    assert audit_of(tmp_path / "run")["explorers"] == {}
    losses = [row["loss"] for row in rows_of(tmp_path / "run")]
    assert losses[-1] < 0.8 * losses[0]
    again = run(tmp_path / "run", cache, *keys, config=file)
    assert "this run is finished" in again.stdout
