"""Several domains at once, one of them judged by a model on an engine of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import ROOT, audit_of, run
from test_seed_files import DEVICES, MODEL, SIZES

from tests.classifiers import last_character_scorer
from tests.judge_model import YES, make_judge

OTHER_SIZES = tuple(size for size in SIZES if not size.startswith(("rollout", "group")))
LENGTHS = (
    "model.max_prompt_tokens=256",
    "model.max_response_tokens=8",
    "val_batch_size=2",
    "rollout.reward_timeout=120",
)
ROWS = {
    "math_rule": {"tag": "aime", "ground_truth": "2"},
    "code_sandbox": {"tag": "KodCode", "test_cases": ["assert f(1) == 2"]},
    "llm_judge": {"tag": "RLVR", "ground_truth": "two"},
    "crossthinkqa": {"tag": "crossthinkqa", "ground_truth": "B"},
    "ifeval": {"tag": "ifeval", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    "helpful": {"tag": "ultrafeedback"},
}
# A domain that a reward model scores, which ROLL's example has none of: half of what ifeval has.
HELPFUL = """
  helpful:
    worker_cls: roll.pipeline.base_worker.RewardWorker
    tag_included: [ultrafeedback]
    model_args: {model_name_or_path: "${reward_pretrain}", dtype: fp32}
    infer_batch_size: 4
"""


def metrics(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_rolls_domains_train_in_their_shares(tmp_path: Path, cache: Path) -> None:
    asked = {"role": "system", "content": "Answer."}, {"role": "user"}  # messages, as ROLL's own data have them
    rows = [
        {"messages": [asked[0], {**asked[1], "content": f"{n} and {name}"}], **row}
        for name, row in ROWS.items()
        for n in range(8)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = make_judge(tmp_path / "judge", YES)
    scorer = last_character_scorer(tmp_path / "scorer", dict.fromkeys(map(chr, range(32, 127)), 0.5))
    published = (ROOT / "tests" / "data" / "rlvr_domains.yaml").read_text()
    shared = published.replace("ifeval: 0.1}", "ifeval: 0.05, helpful: 0.05}").rstrip() + HELPFUL
    (tmp_path / "domains.yaml").write_text(shared.replace("pretrain: Qwen/Qwen2.5-7B", f"pretrain: {scorer}"))
    sources = [f"tasks.train.{name}.source={tmp_path / 'rows.jsonl'}" for name in ROWS]
    own = ("rollout_batch_size=20", "group_size=2", "algorithm.minibatch_size=20")
    sampling = [f"sidecar.{group}.max_new_tokens=8" for group in ("generating_args", "val_generating_args")]
    judged = (f"judges.llm_judge.path={judge}", "judges.llm_judge.dtype=fp32")
    overrides = (*MODEL, *DEVICES, *OTHER_SIZES, *LENGTHS, *sources, *own, *sampling, *judged)
    done = run(tmp_path / "run", cache, *overrides, config=tmp_path / "domains.yaml")
    assert done.returncode == 0, done.stderr
    audit = audit_of(tmp_path / "run")
    assert (audit["balanced"], audit["steps"], audit["trained_twice"], audit["dropped"]) == (True, 2, 0, {})
    shares = {"math_rule": 8, "code_sandbox": 6, "llm_judge": 2, "crossthinkqa": 2, "ifeval": 1, "helpful": 1}  # of 20
    assert {name: counts["trained"] for name, counts in audit["tasksets"].items()} == shares
    for row in metrics(tmp_path / "run"):
        assert row["train/llm_judge/reward"] == 1.0  # YES
        assert row["train/llm_judge/solved"] == 1.0
    (scored,) = [row["train/helpful/reward"] for row in metrics(tmp_path / "run") if "train/helpful/reward" in row]
    assert scored == pytest.approx(0.5, abs=1e-4), "a norm with an epsilon comes before the head"
    assert not list((tmp_path / "run" / "judges").iterdir())


def test_the_config_of_three_domains_trains(tmp_path: Path, cache: Path) -> None:
    judge = make_judge(tmp_path / "judge", YES)
    own = (f"judges.small.path={judge}", "judges.small.max_prompt_tokens=1024", "rollout_batch_size=12", "group_size=2")
    sizes = [size for size in OTHER_SIZES if not size.startswith("observe.report")]
    done = run(
        tmp_path / "run", cache, *MODEL, *DEVICES, *sizes, *LENGTHS, *own, config=ROOT / "configs" / "rlvr_async.py"
    )
    assert done.returncode == 0, done.stderr
    audit = audit_of(tmp_path / "run")
    assert (audit["balanced"], audit["steps"]) == (True, 2)
    assert {name: counts["trained"] for name, counts in audit["tasksets"].items()} == {"math": 6, "code": 4, "open": 2}
    last = metrics(tmp_path / "run")[-1]
    assert (last["train/open/solved"], last["val/open/score"]) == (1.0, 1.0)
    for name in ("math", "code"):
        assert {f"train/{name}/{key}" for key in ("reward", "tokens", "solved", "groups")} < set(last)
        assert {f"val/{name}/{key}" for key in ("score", "tokens", "failed")} < set(last)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Reward by taskset" in page
