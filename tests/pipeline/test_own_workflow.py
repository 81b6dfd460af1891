"""A workflow of one's own through a whole run: trained, validated, audited, replayed, evaluated."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
from rljax.observe.metrics import read_metrics
from rljax.observe.samples import read_samples
from rljax.pipeline.assemble.run import open_ledger, open_model
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.evaluate import evaluate
from rljax.pipeline.replay import replay
from rljax.pipeline.run_dir import RunDir
from rljax.run import Run

pytestmark = pytest.mark.slow

CRITIQUE = Path(__file__).parents[2] / "configs" / "critique.py"
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
KEYS: dict[str, Any] = {
    "model.path": "tiny",
    **{f"model.tiny.{name}": value for name, value in TINY.items()},
    "model.max_prompt_tokens": 120,
    "model.max_response_tokens": 8,
    "model.sequence_length": 256,
    "rollout.workflow_args.critique": "Sure?",
    "rollout.workflow_args.answer_tokens": 4,
    "rollout_batch_size": 8,
    "group_size": 4,
    "max_steps": 2,
    "save_steps": 1,
    "learner.checkpoints_to_keep": None,
    "eval_steps": 2,
    "val_batch_size": 4,
    "sidecar.max_concurrency": 16,
    "observe.tensorboard": False,
}


def test_a_workflow_of_ones_own_is_one_like_any_other(tmp_path: Path) -> None:
    config = load_config(str(CRITIQUE), {**KEYS, "run_dir": str(tmp_path / "run")})
    with Run(config) as run:
        rows = list(run)
        audit = run.audit()
    assert [row["step"] for row in rows] == [1, 2]
    assert audit["balanced"]
    assert audit["trained"] == 4
    turns = {len(sample["turns"]) for sample in read_samples(tmp_path / "run")}
    assert turns == {2}, "two calls of the engine are one trajectory"

    run_dir = RunDir.existing(config)
    model = open_model(config, run_dir)
    steps = list(replay(config, run_dir, open_ledger(config, run_dir), model))
    assert [(step.step, step.differing) for step in steps] == [(2, 0)], "bit for bit the same"
    with contextlib.closing(ENGINE_LAUNCHERS[config.launcher](config)) as launcher:
        measured = list(
            evaluate(dataclasses.replace(config, checkpoint="all"), run_dir, model, launcher, Tasksets(config))
        )
    assert [checkpoint for checkpoint, _ in measured] == [0, 1, 2], "each that was kept, one after another"
    for _, metrics in measured:
        assert (metrics["val/sums/tasks"], metrics["val/sums/failed"]) == (4.0, 0.0)
        assert metrics["val/sums/tokens"] <= 4 + 8
    during = [row["val/sums/score"] for row in read_metrics(tmp_path / "run") if "val/sums/score" in row]
    assert [measured[step][1]["val/sums/score"] for step in (0, 2)] == during, "as the run itself measured them"
    left = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert left == [{"step": checkpoint, **metrics} for checkpoint, metrics in measured]
