"""Groups that several steps train: the program keeps to the use count and the bound, killed or not."""

from __future__ import annotations

import json
from pathlib import Path

from lives import Role, live_to_the_end
from program import audit_of, query, run

KEYS = (
    *("async_generation_ratio=1.0", "max_staleness=3", "max_steps=10", "eval_steps=none", "observe.report=false"),
    *("algorithm.max_uses=3", "algorithm.reuse_ratio=0.5", "algorithm.minibatch_size=8"),
)
"""4 new groups a step, and up to 4 that are reused."""


def test_a_run_that_reuses_is_killed_and_no_group_is_trained_too_often_or_too_late(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    live_to_the_end(run_dir, cache, KEYS, {"both": Role((), ("train:5", "announce:4", ""))})
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"], report["max_uses"], report["steps"]) == (40, 0, 3, 10)
    assert set(report["uses"]) <= {"1", "2", "3"}
    assert sum(report["uses"].values()) == 40
    assert 1 <= report["max_staleness"] <= report["staleness_bound"] == 3

    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    reused = [row["batch/reused_groups"] for row in rows]
    assert (reused[0], set(reused[1:])) == (0.0, {4.0}), "from the second step on there are enough old ones"
    assert sum(int(times) * n for times, n in report["uses"].items()) == 40 + sum(reused)
    assert len(query(run_dir, "SELECT * FROM batches")) > 40 + sum(reused), "some steps were trained again"

    replayed = run(run_dir, cache, *KEYS, "mode=replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "replayed to step 10: bit for bit the same" in replayed.stdout
