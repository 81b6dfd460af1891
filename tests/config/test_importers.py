"""Files of ROLL and Trinity-RFT: references, refusals, tables and hints."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.fields import ConfigError
from rljax.config.importers import published
from rljax.config.importers.rule import LEFT_OUT
from rljax.config.importers.translate import TABLES, translate
from rljax.config.load import key_help, load_config
from rljax.config.refusals import RefusedConfig
from tests.config.importer_files import RLVR, ROLL, SEEDS, TRINITY, nested, refused


def test_what_validates_is_read_too(write: Any) -> None:
    more = nested(RLVR, "validation", {"data_args": {"file_name": "v.jsonl"}, "generating_args": {"temperature": 0.6}})
    config = load_config(write(more))
    rows = config.tasks.validation["math_rule"]
    assert (rows.source, rows.prompt_key, rows.answer_key) == ("v.jsonl", "prompt", "ground_truth")
    assert config.sidecar.val_generating_args.temperature == 0.6
    sets = [{"name": "e", "path": "openai/gsm8k", "subset_name": "main", "format": {"prompt_key": "q"}}]
    more = nested(nested(TRINITY, "buffer.explorer_input.eval_tasksets", sets), "explorer.eval_interval", 7)
    config = load_config(write(more))
    tasks = config.tasks.validation["e"]
    assert (tasks.source, tasks.split, tasks.prompt_key) == ("hub:openai/gsm8k", "test", "q")
    assert tasks.rewards == ("numeric", "format")
    assert config.eval_steps == 7


REFUSED = [
    (ROLL, "actor_train.strategy_args.strategy_config.pipeline_model_parallel_size", 2, "no pipeline stages; write 1"),
    (ROLL, "actor_train.model_args.dtype", "fp16", "no training in fp16; write bf16"),
    (ROLL, "actor_infer.strategy_args.strategy_name", "sglang", "write --config.sidecar.engine=vllm"),
    (ROLL, "actor_infer.generating_args.num_beams", 4, "no beam search; write 1"),
    (ROLL, "actor_infer.generating_args.num_return_sequences", 4, "the group has 8; write the same number"),
    (ROLL, "val_env_manager.group_size", 2, "greedy episodes of one seed are all the same; write 1"),
    (ROLL, "actor_train.device_mapping", "list(range(0,12))", "as many on each; write others, or --config.learner."),
    (
        ROLL,
        "actor_train.training_args.gradient_accumulation_steps",
        5,
        "40 trajectories an update do not divide the 64",
    ),
    (ROLL, "rollout_batch_size", "many", "whole number above 0"),
    (ROLL, "actor_train.max_tokens_per_microbatch_in_train", 100, "of 2048 tokens; write 2048 or more"),
    (ROLL, "max_steps", "many", "expected an integer"),
    (ROLL, "max_steps", 0, "must be at least 1"),
    (ROLL, "adv_estimator", "rloo2", "not one of gae, reinforce"),
    (ROLL, "custom_envs", {"FrozenLake": {"env_type": "gem:game"}}, "write --config.custom_envs.FrozenLake.id="),
    (ROLL, "use_opd", True, "a teacher is not taken over; write algorithm.distill.teachers.NAME.path"),
    (ROLL, "max_step", 3, "unknown key; did you mean max_steps?"),
    (ROLL, "actor_train.training_args.learning_rat", 3, "did you mean actor_train.training_args.learning_rate?"),
    (ROLL, "actor_train", 3, "this is a group of keys; write them (model_args, training_args, "),
    (ROLL, "train_env_manager.num_groups_partition", [3], "add up to num_env_groups=8"),
    (ROLL, "train_env_manager.tags", 3, "not a value that this key has"),
    (RLVR, "rewards.mine.worker_cls", "mine.MyRewardWorker", "MyRewardWorker is not translated"),
    (
        RLVR,
        "actor_train.data_args.domain_interleave_probs",
        {"math_rule": 0.5, "ifeval": 0.5},
        "ifeval: no such domain",
    ),
    (RLVR, "rewards.llm_judge.judge_prompt", "mine", "mine is no template; write --config.judges.llm_judge.template"),
    (RLVR, "rewards.llm_judge.judge_model_type", "api", "write judge_api_url and judge_model_name beside it"),
    (RLVR, "rewards.llm_judge.judge_api_key", "sk-1", "a config holds no key"),
    (RLVR, "sequence_length", 1000, "must add up to sequence_length"),
    (RLVR, "reward_model", {"model_args": {"dtype": "bf16"}}, "write --config.judges.NAME.path=MODEL"),
    (TRINITY, "buffer.train_batch_size", 30, "batch_size × repeat_times = 32 and train_batch_size = 30"),
    (TRINITY, "synchronizer.sync_style", "dynamic_by_explorer", "no style leaves staleness unbounded here"),
    (TRINITY, "algorithm.algorithm_type", "dpo", "not one of ppo, grpo"),
    (TRINITY, "algorithm.algorithm_type", "dpo", "kl.where, without which there is none"),
    (TRINITY, "algorithm.kl_loss_fn", "k9", "--config.algorithm.kl.estimator and --config.algorithm.kl.where=loss"),
    (TRINITY, "trainer.max_token_len_per_gpu", 100, "of 1024 tokens; write 1024 or more"),
    (
        TRINITY,
        "buffer.explorer_input.taskset.default_workflow_type",
        "alfworld_workflow",
        "there is no alfworld_workflow; write math_workflow or simple_workflow, or "
        "--config.rollout.workflow=module:Class",
    ),
    (TRINITY, "buffer.explorer_input.taskset.storage_type", "sql", "write storage_type: file"),
    (TRINITY, "model.max_model_len", 100, "max_model_len=100 must be above max_response_tokens=512"),
    (TRINITY, "buffer.batch_sise", 3, "did you mean buffer.batch_size?"),
    (TRINITY, "explorer.auxiliary_models", [{"model_path": "x"}], "write --config.judges.NAME.path=MODEL"),
    (TRINITY, "synchronizer.explorer_sync_interval", 3, "explorer and trainer have one interval"),
    (TRINITY, "trainer.trainer_config", {"a": 1}, "verl's own; leave it out"),
    (TRINITY, "mode", "tune", "not one of both, train, explore, bench, colocate, serve"),
]


@pytest.mark.parametrize(("text", "path", "value", "line"), REFUSED, ids=[path for _, path, _, _ in REFUSED])
def test_what_cannot_be_had_is_refused_with_what_to_write(
    text: str, path: str, value: Any, line: str, write: Any
) -> None:
    found = refused(write(nested(text, path, value)))
    assert any(line in remark for remark in found.values()), found
    assert any(name.startswith(path) or path.rpartition(".")[0] == name.rpartition(".")[0] for name in found)


def test_what_a_refusal_says_to_write_settles_it(write: Any) -> None:
    file = write(nested(TRINITY, "trainer.max_token_len_per_gpu", 100))
    assert load_config(file, {"learner.rows_per_microbatch": "6"}).learner.max_tokens_per_row == 1024
    file = write(nested(TRINITY, "algorithm.kl_loss_fn", "k9"))
    kl = load_config(file, {"algorithm.kl.estimator": "k3", "algorithm.kl.where": "loss"}).algorithm.kl
    assert (kl.where, kl.estimator) == ("loss", "k3")
    group = nested(RLVR, "num_return_sequences_in_group", 0)
    file = write(nested(group, "actor_infer.generating_args.num_return_sequences", 0))
    assert list(refused(file)) == ["num_return_sequences_in_group"]


def test_a_workflow_that_is_not_there_does_not_hide_the_taskset(write: Any) -> None:
    named = "buffer.explorer_input.taskset.default_workflow_type"
    text = nested(nested(TRINITY, named, "math_workflw"), "buffer.explorer_input.taskset.name", "sums")
    text = nested(text, "buffer.explorer_input.taskset.format.prompt_key", "question")
    found = refused(write(text))
    assert list(found) == [named]
    assert found[named].endswith("and --config.tasks.train.sums.rewards")
    translated = translate(write(text)).values
    assert translated["tasks.train.sums.prompt_key"] == "question"


def test_an_engine_of_vllm_takes_fp16(write: Any) -> None:
    roll = load_config(write(nested(ROLL, "actor_infer.model_args.dtype", "fp16")))
    trinity = load_config(write(nested(TRINITY, "explorer.rollout_model.dtype", "float16")))
    assert [(c.sidecar.dtype, c.sidecar.engine) for c in (roll, trinity)] == [("fp16", "vllm"), ("fp16", "vllm_async")]


def test_a_template_and_thinking_are_those_of_the_file(write: Any) -> None:
    text = nested(nested(TRINITY, "model.chat_template_path", "chat.jinja"), "model.enable_thinking", False)
    model = load_config(write(text)).model
    assert (model.chat_template, model.enable_thinking) == ("chat.jinja", False)


@pytest.mark.parametrize(("text", "key"), [(ROLL, "max_ckpt_to_keep"), (TRINITY, "trainer.max_checkpoints_to_keep")])
def test_no_bound_of_checkpoints_keeps_all(text: str, key: str, write: Any) -> None:
    kept = [load_config(write(nested(text, key, number))).learner.checkpoints_to_keep for number in (0, 3)]
    assert kept == [None, 3]


def test_all_refusals_come_at_once_in_a_table(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = ROLL
    for path, value in (
        ("actor_infer.strategy_args.strategy_name", "sglang"),
        ("actor_train.model_args.dtype", "fp16"),
        ("actor_infer.generating_args.num_beams", 2),
        ("no_such_key", 1),
    ):
        text = nested(text, path, value)
    assert main([f"--config={write(text)}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rljax: mine.yaml: ROLL's keys that are refused:"
    lines = [line for line in lines if "this machine has no gpu" not in line]  # on a machine without one
    assert len(lines) == 5
    assert {line.split(" = ")[0].strip() for line in lines[1:]} == {
        "actor_infer.strategy_args.strategy_name",
        "actor_train.model_args.dtype",
        "actor_infer.generating_args.num_beams",
        "no_such_key",
    }


TYPES: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        ROLL,
        {"adv_estimator": "gigpo", "step_reward_gamma": "x", "episode_reward_weight": [1], "max_steps": "many"},
        ["step_reward_gamma", "episode_reward_weight", "max_steps"],
    ),
    (ROLL, {"pg_clip": "x", "max_steps": "many"}, ["pg_clip", "max_steps"]),
    (ROLL, {"pg_clip": "x", "pg_clip_low": 0.3, "use_pg_clip_range": False}, ["pg_clip"]),
    (ROLL, {"pg_clip": 0.2, "pg_clip_low": "x", "pg_clip_high": 0.3, "use_pg_clip_range": True}, ["pg_clip_low"]),
    (
        RLVR,
        {"difficulty_mask": True, "difficulty_high_threshold": "x", "ppo_epochs": 0},
        ["difficulty_mask", "difficulty_high_threshold", "ppo_epochs"],
    ),
    (RLVR, {"val_sequence_length": 3000, "max_steps": 0}, ["val_sequence_length", "max_steps"]),
    (RLVR, {"val_prompt_length": 100, "val_sequence_length": 1124, "max_steps": 0}, ["max_steps"]),
    (
        TRINITY,
        {
            "algorithm.advantage_fn": "ppo",
            "algorithm.advantage_fn_args": {"gamma": "x", "lam": 2},
            "algorithm.policy_loss_fn_args": {"clip_range": [0.2]},
            "buffer.batch_sise": 3,
        },
        [
            "algorithm.advantage_fn_args.gamma",
            "algorithm.advantage_fn_args.lam",
            "algorithm.policy_loss_fn_args.clip_range",
            "buffer.batch_sise",
        ],
    ),
]


@pytest.mark.parametrize(("text", "keys", "paths"), TYPES, ids=[" ".join(keys) for _, keys, _ in TYPES])
def test_values_of_a_loss_an_advantage_and_a_validation_are_refused_with_the_others(
    text: str, keys: dict[str, Any], paths: list[str], write: Any
) -> None:
    for key, value in keys.items():
        text = nested(text, key, value)
    assert sorted(refused(write(text))) == sorted(paths)


def test_another_function_settles_what_a_loss_would_not_take(write: Any) -> None:
    path = write(nested(ROLL, "pg_clip", "x"))
    assert not refused(path, **{"algorithm.pg_variant": "topr"})
    assert load_config(path, {"algorithm.pg_variant": "topr"}).algorithm.pg_variant == "topr"
    longer = write(nested(RLVR, "val_sequence_length", 3000))
    config = load_config(longer, {"model.max_response_tokens": "2500"})
    assert config.sidecar.val_generating_args.max_new_tokens == 3000 - 512


def test_a_group_is_blamed_on_the_key_that_says_it(write: Any) -> None:
    own = (SEEDS / "agent_val_frozen_lake_async.yaml").read_text()  # whose managers are published under its own name
    said = (
        (f"{own}\ntrain_env_manager: {{tags: [FrozenLake]}}\n", "ROLL: train_env_manager.group_size, left out"),
        (nested(ROLL, "train_env_manager.group_size", 1), "ROLL: train_env_manager.group_size"),
        (nested(nested(RLVR, "adv_estimator", "grpo"), "num_return_sequences_in_group", 1), "ROLL: num_return_seq"),
    )
    for text, blamed in said:
        with pytest.raises(ConfigError, match=rf"^group_size=1: .*\({re.escape(blamed)}[a-z_]*\)$"):
            load_config(write(text))


def test_an_override_of_what_to_write_settles_a_refusal(write: Any) -> None:
    path = write(nested(ROLL, "actor_infer.strategy_args.strategy_name", "sglang"))
    with pytest.raises(RefusedConfig):
        load_config(path, {"max_steps": "3"})
    assert load_config(path, {"sidecar.engine": "embedded", "max_steps": "3"}).sidecar.engine == "embedded"


def test_what_cannot_work_together_names_the_file_s_own_keys(write: Any) -> None:
    path = write(nested(ROLL, "actor_infer.strategy_args.strategy_config.max_model_len", 100))
    with pytest.raises(
        ConfigError, match=r"^sidecar.max_model_len=100: .* \(ROLL: actor_infer\.strategy_args\.strategy_"
    ):
        load_config(path)


def test_what_published_files_say_beside_what_they_mean(write: Any) -> None:
    """Keys that are off beside one that is on, a variable at the top, a block of DeepSpeed's, and two time limits."""
    text = RLVR
    for path, value in (
        ("defaults", ["../config/deepspeed_zero@_here_", "../config/deepspeed_zero3@_here_"]),
        ("pg_variant", "ppo"),
        ("exp_name", "lake-${pg_variant}"),
        ("max_len_mask", True),
        ("error_max_len_clip", False),
        ("eval_steps", 0),
        ("track_with", "wandb"),
        ("actor_train.strategy_args", {"strategy_name": "deepspeed_train", "strategy_config": "${deepspeed_zero3}"}),
    ):
        text = nested(text, path, value)
    config = load_config(write(text))
    assert (config.run_dir, config.eval_steps, config.algorithm.overlong) == ("./output/lake-ppo", None, "mask")
    text = nested(TRINITY, "synchronizer", {"sync_method": "checkpoint", "sync_timeout": 1200})
    text = nested(text, "buffer.trainer_input", {"experience_buffer": {"max_read_timeout": 7200}})
    assert load_config(write(text)).wait_timeout == 7200.0


def test_a_file_of_nobody_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match="no key of ROLL's or Trinity-RFT's"):
        load_config(write("hello: 1\n"))
    with pytest.raises(ConfigError, match=r"no such file; did you mean .*mine\.yaml"):
        load_config(str(Path(write(ROLL)).with_name("mines.yaml")))


def test_keys_of_ours_that_a_table_names_are_there() -> None:
    paths = [path for path, _, _ in key_help()]
    own = (
        "algorithm.loss.",
        "algorithm.advantage.",
        "algorithm.filter.",
        "sidecar.engine_args.",
        "custom_envs.NAME.kwargs.",
    )
    for whose, rules in TABLES.items():
        assert len({rule.path for rule in rules}) == len(rules), whose
        for rule in rules:
            assert rule.here or rule.remark or rule.default is not LEFT_OUT or rule.refused, rule.path
            for key in rule.here:
                if not key.startswith(own) and not key.endswith("*"):
                    assert any(path == key or path.startswith(f"{key}.") for path in paths), (rule.path, key)


def test_what_is_published_is_what_resolves() -> None:
    before = copy.deepcopy((published.EXAMPLES, published.BLOCKS))
    for name in published.EXAMPLES:
        translate(str(SEEDS / f"{name}.yaml"))
    assert before == (published.EXAMPLES, published.BLOCKS)


def test_what_does_not_go_together_comes_at_once(write: Any) -> None:
    """By itself each of these keys is right."""
    text = nested(nested(ROLL, "train_env_manager.group_size", 7), "actor_infer.generating_args.temperature", 0)
    path = write(nested(text, "train_env_manager.tags", ["FrozenLak"]))
    with pytest.raises(RefusedConfig) as refused:
        load_config(path)
    title, *lines = str(refused.value).splitlines()
    assert title.endswith(": ROLL's keys that are refused:")
    assert [line.strip().split("  ")[0] for line in lines] == [
        "rollout_batch_size, train_env_manager.group_size",
        "actor_infer.generating_args.temperature",
        "train_env_manager.tags",
    ]
    assert "nearest that works: " in lines[0]
    assert "write a temperature above 0" in lines[1]
    assert "did you mean FrozenLake?" in lines[2]


def test_a_file_of_the_other_program_is_said_to_be_that(write: Any) -> None:
    for name, text, other, right in (("roll", TRINITY, "Trinity-RFT", "trinity"), ("trinity", ROLL, "ROLL", "roll")):
        path = write(text)
        with pytest.raises(ConfigError) as refused:
            load_config(f"{name}:{path}")
        line = f"{path}: a file of {other}'s; write --config={right}:{path} or --config={path}"
        assert str(refused.value).endswith(line)


def test_a_space_after_the_comma_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    pair = [f"{SEEDS}/explorer.yaml", f"{SEEDS}/trainer.yaml"]
    assert main([f"--config={pair[0]},", pair[1], "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"rljax: --config={pair[0]}, {pair[1]}: leave the space out; write --config={pair[0]},{pair[1]}"


@pytest.mark.parametrize("between", [";", " ", ":", "; ", "+", " | "])
def test_what_is_no_comma_between_two_files_is_told(between: str, write: Any) -> None:
    for reader in ("", "trinity:"):
        with pytest.raises(ConfigError) as refused:
            load_config(f"{reader}{SEEDS}/explorer.yaml{between}{SEEDS}/trainer.yaml")
        line = f"a comma stands between two files: write {SEEDS}/explorer.yaml,{SEEDS}/trainer.yaml"
        assert str(refused.value).endswith(line)
