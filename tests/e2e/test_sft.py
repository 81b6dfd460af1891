"""Demonstrations alone, before rewards: nothing is sampled for training, and what was learnt is where rewards begin."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from lives import Role, live_to_the_end
from program import LIMIT, ROOT, assert_balanced, audit_of, environment, query, run, undocumented

ALONE = ("algorithm.pg_variant=sft", "algorithm.expert_data_ratio=1", "rollout_batch_size=10")
UNTASKED = """from tests.e2e import smallest

def get_config():
    config = smallest.get_config()
    with config.unlocked():
        config.tasks.train, config.tasks.validation = {}, {}
    return config
"""
PAGE = (ROOT / "docs" / "sft.md").read_text()


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


def test_the_commands_of_the_page_lead_from_imitation_to_rewards(tmp_path: Path, cache: Path) -> None:
    """Copied from the page, in an empty folder; the scores are those that it says, or better."""
    found = environment(cache, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for command in block.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(command)
            assert program == "rljax"
            done = subprocess.run(
                [sys.executable, "-m", "rljax.main", *arguments],
                capture_output=True,
                text=True,
                timeout=LIMIT,
                env=found,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
    imitated, rewarded = (
        [row["val/reverse_digits/score"] for row in rows_of(tmp_path / "runs" / name) if "val/seconds" in row]
        for name in ("sft", "rl")
    )
    assert imitated[0] < 0.2 < 0.5 < imitated[-1]
    assert rewarded[0] == imitated[-1], "rewards begin where imitation ended"
    assert rewarded[-1] > rewarded[0] + 0.1
    for name in ("sft", "rl"):
        assert audit_of(tmp_path / "runs" / name)["balanced"]
