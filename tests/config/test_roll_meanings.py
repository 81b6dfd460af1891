"""Keys of ROLL whose meaning is easily lost: budgets, shares of updates, filters, precision, templates, judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.config.schema import Config
from tests.config.importer_files import RLVR, ROLL, nested, refused

_STRATEGY = "actor_train.strategy_args.strategy_config"
MATH, CODE = "MathRuleRewardWorker", "CodeSandboxRewardWorker"
TWO = {
    "math_rule": {"worker_cls": MATH, "tag_included": ["aime"]},
    "code_sandbox": {"worker_cls": CODE, "tag_included": ["KodCode"]},
}


def text_of(text: str, *keys: tuple[str, Any]) -> str:
    for path, value in keys:
        text = nested(text, path, value)
    return text


def resolved(write: Any, text: str, *keys: tuple[str, Any]) -> Config:
    return load_config(write(text_of(text, *keys)))


def test_a_validation_is_of_all_rows_unless_it_plays(write: Any) -> None:
    rows = ("validation", {"data_args": {"file_name": "v.jsonl"}})
    assert resolved(write, RLVR, rows).val_batch_size is None
    assert resolved(write, RLVR, rows, ("val_batch_size", 64)).val_batch_size is None  # ROLL's RLVR does not read it
    assert sum(resolved(write, ROLL, ("val_batch_size", 16)).val_groups.values()) == 16


def test_a_share_of_updates_is_counted_in_updates(write: Any) -> None:
    """16 × 4 trajectories in updates of 1 × 16 × 2: two a step; 50 steps of two epochs are 200 updates."""
    ratio = ("actor_train.training_args.warmup_ratio", 0.1)
    config = resolved(write, RLVR, ratio, ("max_steps", 50), ("ppo_epochs", 2))
    assert config.learner.optimizer.warmup_steps == 20


@pytest.mark.parametrize(
    ("key", "given", "budget"), [("val_sequence_length", 1500, 988), ("val_prompt_length", 256, 1280)]
)
def test_a_validation_s_budget_is_what_its_prompt_leaves(key: str, given: int, budget: int, write: Any) -> None:
    """1500 − 512; 512 + 1024 − 256."""
    found = {row: here for row, here in _here(write(nested(RLVR, key, given))).items() if here}
    assert found["sidecar.val_generating_args.max_new_tokens"] == budget
    assert found["sidecar.generating_args.max_new_tokens"] == 1024


def _here(path: str) -> dict[str, Any]:
    from rljax.config.importers.translate import translate

    return translate(path).values


def test_a_filter_is_of_the_whole_run(write: Any) -> None:
    strict = {"type": "mean_filter", "filter_args": {"threshold_down": 0.1, "threshold_up": 0.9}}
    rewards = {name: {**group, "query_filter_config": strict} for name, group in TWO.items()}
    band = resolved(write, RLVR, ("rewards", rewards)).algorithm
    assert (band.filters, band.filter["mean_band"].low, band.filter["mean_band"].high) == (("mean_band",), 0.1, 0.9)
    one = {**TWO, "math_rule": rewards["math_rule"]}
    found = refused(write(text_of(RLVR, ("rewards", one))))
    assert list(found) == ["rewards.math_rule.query_filter_config"]
    assert "the domains differ" in found["rewards.math_rule.query_filter_config"]
    shares = ("actor_train.data_args.domain_interleave_probs", {"code_sandbox": 1.0})
    assert resolved(write, RLVR, ("rewards", one), shares).algorithm.filters == ()


def test_one_domain_with_a_share_among_several_has_its_rows_alone(write: Any) -> None:
    shares = ("actor_train.data_args.domain_interleave_probs", {"code_sandbox": 1.0, "math_rule": 0})
    train = resolved(write, RLVR, ("rewards", TWO), shares).tasks.train
    assert {name: taskset.tags for name, taskset in train.items()} == {"code_sandbox": ("KodCode",)}


def test_a_validation_finds_its_rows_whatever_their_spelling(write: Any, tmp_path: Path) -> None:
    rows = [
        {"prompt": "?", "ground_truth": "1", "tag": "größe"},
        {"prompt": "?", "ground_truth": "KodCode", "tag": "x"},
    ]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, rows)))  # ö is escaped, and "KodCode" is no tag there
    rewards = {**TWO, "math_rule": {"worker_cls": MATH, "tag_included": ["größe"]}}
    validation = ("validation", {"data_args": {"file_name": str(tmp_path / "v.jsonl")}})
    assert list(resolved(write, RLVR, ("rewards", rewards), validation).tasks.validation) == ["math_rule"]


def test_a_reward_of_one_s_own_is_named_on_both_sides(write: Any) -> None:
    rewards = ("rewards", {"mine": {"worker_cls": "mine.MyRewardWorker"}})
    validation = ("validation", {"data_args": {"file_name": "v.jsonl"}})
    path = write(text_of(RLVR, rewards, validation))
    named = {"tasks.train.mine.rewards": "tests.rollout.workflows.bad_workflows:score"}
    assert list(refused(path, **named)) == ["validation.data_args.file_name"]
    named["tasks.validation.mine.rewards"] = "exact"
    tasks = load_config(path, named).tasks
    assert (tasks.train["mine"].source, tasks.validation["mine"].source) == ("a.jsonl,b.jsonl", "v.jsonl")
    assert tasks.validation["mine"].rewards == ("exact",)


def test_keys_of_another_loss_are_not_needed(write: Any) -> None:
    keys = (
        ("importance_sampling", "token"),
        ("actor_train.tis_lower_bound", 0.5),
        ("actor_train.topr_positive_weight", 2),
    )
    for variant in ("cispo", "topr", "tis", "ppo"):
        loss = resolved(write, RLVR, *keys, ("actor_train.pg_variant", variant)).algorithm.loss
        read = {"topr": ("positive_weight", 2.0), "tis": ("low", 0.5), "ppo": ("ratio_level", "token")}.get(variant)
        assert read is None or getattr(loss, read[0]) == read[1]


def test_fsdp_s_precision_and_shards_are_read(write: Any) -> None:
    keys = (
        (f"{_STRATEGY}.param_dtype", "bf16"),
        (f"{_STRATEGY}.reduce_dtype", "float32"),
        (f"{_STRATEGY}.fsdp_size", 2),
    )
    config = resolved(write, ROLL, *keys, ("actor_train.model_args.dtype", "fp32"))
    assert (config.model.dtype, config.learner.reduce_dtype) == ("bf16", "fp32")
    assert (config.learner.mesh.fsdp, config.learner.mesh.data) == (2, 2)  # of four devices
    assert config.algorithm.minibatch_size == 64  # 2 × 8 × 4, as before
    whole = resolved(write, ROLL, (f"{_STRATEGY}.fsdp_size", -1)).learner.mesh
    assert (whole.fsdp, whole.data) == (4, 1)


def test_expert_parallelism_takes_its_devices_of_those_with_rows_of_their_own(write: Any) -> None:
    size = f"{_STRATEGY}.expert_model_parallel_size"
    config = resolved(write, ROLL, (size, 2))
    routed = resolved(write, ROLL, ("actor_train.model_args.moe_aux_loss_coef", 0.01))
    assert routed.algorithm.router_aux_loss_coef == 0.01
    assert (config.learner.mesh.expert, config.learner.mesh.fsdp) == (2, 2)  # of four devices, as Megatron cuts them
    assert config.learner.rows_per_microbatch == resolved(write, ROLL).learner.rows_per_microbatch
    remark = refused(write(text_of(ROLL, (size, 3))))[size]
    assert remark.startswith("does not divide the 4 devices that have rows of their own; write another")


@pytest.mark.parametrize("worker", ["actor_train", "actor_infer"])
def test_routes_are_replayed_where_an_engine_records_them(worker: str, write: Any) -> None:
    """ROLL's R3 is of the engines, its R2 of the learner's own earlier pass."""
    mode = f"{worker}.router_replay.mode"
    assert resolved(write, ROLL, (mode, "disable")).algorithm.router_replay == "off"
    assert resolved(write, ROLL, (mode, "R3")).algorithm.router_replay == "replay"
    assert refused(write(text_of(ROLL, (mode, "R2"))))[mode].startswith(
        "the learner's own earlier choices are not kept"
    )
    assert refused(write(text_of(ROLL, (mode, "R4"))))[mode].startswith("not one of disable, R3; write --config.algo")


def test_a_filter_by_nothing_filters_nothing(write: Any) -> None:
    filters = [{"enabled": True, "agg_type": "token", "ratio_enabled": False}]
    assert resolved(write, ROLL, ("train_infer_correction.filters", filters)).algorithm.correction.level == "none"


def test_a_judge_s_share_of_a_gpu_is_read(write: Any) -> None:
    judge = {"worker_cls": "LLMJudgeRewardWorker", "judge_model_type": "inference", "model_args": {"dtype": "bf16"}}
    judge["model_args"] = {"model_name_or_path": "m"}
    config = {
        "gpu_memory_utilization": 0.4,
        "tensor_parallel_size": 1,
        "load_format": "auto",
        "swap_space": 2,
        "max_num_batched_tokens": 512,
    }
    given = {"llm_judge": {**judge, "strategy_args": {"strategy_name": "vllm", "strategy_config": config}}}
    made = resolved(write, RLVR, ("rewards", given)).judges["llm_judge"]
    assert (made.engine, made.gpu_memory_utilization, dict(made.engine_args)) == (
        "vllm",
        0.4,
        {"max_num_batched_tokens": 512},
    )
    config["tensor_parallel_size"] = 2
    assert "one device" in refused(write(text_of(RLVR, ("rewards", given))))["rewards.llm_judge.strategy_args"]


OTHER = [
    ("actor_train.data_args.template", "chatml", "write native, or --config.model.chat_template"),
    ("global_template", "longCOT_qwen2.5", "write native"),
    ("tag_to_template", {"aime": "native", "KodCode": "base"}, "base: the model's own"),
    (f"{_STRATEGY}.zero_optimization", {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "nothing is offloaded"),
    (f"{_STRATEGY}.reduce_dtype", "fp16", "write fp32 or bf16"),
]


@pytest.mark.parametrize(("key", "value", "line"), OTHER, ids=[key for key, _, _ in OTHER])
def test_what_there_is_not_is_refused(key: str, value: Any, line: str, write: Any) -> None:
    found = refused(write(nested(RLVR, key, value)))
    assert list(found) == [key] or key.startswith(_STRATEGY)
    assert all(line in remark for remark in found.values())
    assert found


def test_the_model_s_own_template_has_several_names(write: Any) -> None:
    keys = (
        ("actor_train.data_args.template", "chatml"),
        ("global_template", "native"),
        ("tag_to_template", {"a": "qwen3"}),
    )
    assert not refused(write(text_of(RLVR, *keys)))


def test_another_reference_is_refused_where_one_is_read(write: Any) -> None:
    other = ("reference", {"model_args": {"model_name_or_path": "other"}})
    found = refused(write(text_of(RLVR, other, ("use_kl_loss", True))))
    assert list(found) == ["reference"]
    assert not refused(write(text_of(RLVR, other)))
    same = ("reference", {"model_args": {"model_name_or_path": "Qwen/Qwen2.5-7B"}})
    assert not refused(write(text_of(RLVR, same, ("use_kl_loss", True))))


def test_dialogues_come_before_prompts(write: Any, tmp_path: Path) -> None:
    """As ROLL reads a row: its `messages`, system turns included, and `prompt` only where there are none."""
    told, plain = tmp_path / "told.jsonl", tmp_path / "plain.jsonl"
    told.write_text(json.dumps({"messages": "[]", "prompt": "?", "ground_truth": "1"}))
    plain.write_text(json.dumps({"prompt": "?", "ground_truth": "1"}))
    for file, keys, column in (
        (told, {}, "messages"),
        (told, {"messages": "messages"}, "messages"),
        (plain, {"messages": "messages"}, None),
        (tmp_path / "away.jsonl", {"messages": "turns"}, "turns"),
        (tmp_path / "away.jsonl", {}, None),
    ):
        config = resolved(write, RLVR, ("actor_train.data_args", {"file_name": str(file), **keys}))
        assert config.tasks.train["math_rule"].messages_key == column, (file.name, keys)
