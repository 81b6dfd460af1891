"""The seven YAML documents of ROLL's and Trinity-RFT's documentation, as they stand: each of their keys, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.config.importers.translate import translate
from rljax.config.load import as_plain, load_config
from rljax.config.refusals import RefusedConfig
from rljax.config.schema import Config

SEEDS = Path(__file__).parents[1] / "data" / "seeds"
UNNEEDED = "unnecessary"
# What is refused there: sglang, and its fp16; each is settled by what its line says.
SETTLED = {"sidecar.engine": "vllm", "sidecar.dtype": "bf16"}

TRAINS: dict[str, Any] = {
    "async_generation_ratio": {"async_generation_ratio": 1.0},
    "max_steps": {"max_steps": 1024},
    "save_steps": {"save_steps": 10000},
    "logging_steps": {"logging_steps": 1},
    "eval_steps": {"eval_steps": 10},
    "ppo_epochs": {"algorithm.ppo_epochs": 1},
    "adv_estimator": {"algorithm.adv_estimator": "grpo"},
    "whiten_advantages": {"algorithm.whiten_advantages": True},
    "reward_pretrain": UNNEEDED,
    "actor_train.model_args.attn_implementation": UNNEEDED,
    "actor_train.model_args.disable_gradient_checkpointing": {"model.remat": "full"},
    "actor_train.model_args.dtype": {"model.dtype": "bf16"},
    "actor_train.training_args.learning_rate": {"learner.optimizer.learning_rate": 1e-6},
    "actor_train.training_args.weight_decay": {"learner.optimizer.weight_decay": 0.0},
    "actor_train.training_args.warmup_steps": {"learner.optimizer.warmup_steps": 10},
    "actor_train.strategy_args.strategy_name": UNNEEDED,
    "actor_train.strategy_args.strategy_config.tensor_model_parallel_size": {"learner.mesh.tensor": 1},
    "actor_train.strategy_args.strategy_config.pipeline_model_parallel_size": UNNEEDED,
    "actor_train.strategy_args.strategy_config.expert_model_parallel_size": UNNEEDED,
    "actor_train.strategy_args.strategy_config.use_distributed_optimizer": UNNEEDED,
    "actor_train.strategy_args.strategy_config.recompute_granularity": {"model.remat": "full"},
    "actor_train.device_mapping": {"learner.devices": "gpu:0-3", "learner.mesh.fsdp": 4},
    "actor_train.infer_batch_size": UNNEEDED,
    "actor_infer.model_args.disable_gradient_checkpointing": UNNEEDED,
    "actor_infer.model_args.dtype": {"sidecar.dtype": "bf16"},
    "actor_infer.generating_args.top_p": {"sidecar.generating_args.top_p": 0.99},
    "actor_infer.generating_args.top_k": {"sidecar.generating_args.top_k": 100},
    "actor_infer.generating_args.num_beams": UNNEEDED,
    "actor_infer.generating_args.temperature": {"sidecar.generating_args.temperature": 0.99},
    "actor_infer.generating_args.num_return_sequences": UNNEEDED,
    "actor_infer.strategy_args.strategy_name": {"sidecar.engine": "vllm"},
    "actor_infer.strategy_args.strategy_config.gpu_memory_utilization": {"sidecar.gpu_memory_utilization": 0.8},
    "actor_infer.strategy_args.strategy_config.block_size": {"sidecar.block_size": 16},
    "actor_infer.strategy_args.strategy_config.load_format": {"sidecar.load_format": "auto"},
    "actor_infer.device_mapping": {"sidecar.devices": "gpu:4-7", "sidecar.num_engines": 4},
}
WEBSHOP = TRAINS | {
    "rollout_batch_size": {"rollout_batch_size": 64},
    "val_batch_size": {"rollout.val_env_manager.num_env_groups": 64},
    "sequence_length": {"model.sequence_length": 8192, "model.max_response_tokens": 1024},
    "pretrain": {"model.path": "Qwen/Qwen2.5-7B-Instruct"},
    # 1 × 16 × 4 devices
    "actor_train.training_args.per_device_train_batch_size": {"learner.rows_per_microbatch": 4},
    "actor_train.training_args.gradient_accumulation_steps": {"algorithm.minibatch_size": 64},
    "actor_train.strategy_args.strategy_config.context_parallel_size": {"learner.mesh.sequence": 1},
    "actor_infer.generating_args.max_new_tokens": {"sidecar.generating_args.max_new_tokens": 1024},
    "actor_infer.infer_batch_size": UNNEEDED,
}
LAKE = TRAINS | {
    "rollout_batch_size": {"rollout_batch_size": 1024},
    "val_batch_size": {"rollout.val_env_manager.num_env_groups": 1024},
    "sequence_length": {"model.sequence_length": 8192, "model.max_response_tokens": 128},
    "pretrain": {"model.path": "Qwen/Qwen2.5-0.5B-Instruct"},
    # 2 × 128 × 4 devices
    "actor_train.training_args.per_device_train_batch_size": {"learner.rows_per_microbatch": 8},
    "actor_train.training_args.gradient_accumulation_steps": {"algorithm.minibatch_size": 1024},
    "actor_infer.generating_args.max_new_tokens": {"sidecar.generating_args.max_new_tokens": 128},
}
MANAGERS = {
    "train_env_manager.max_env_num_per_worker": {"rollout.train_env_manager.max_env_num_per_worker": 16},
    "train_env_manager.num_env_groups": {"rollout.train_env_manager.num_env_groups": 128},
    "train_env_manager.group_size": {"group_size": 8},
    "train_env_manager.tags": {"rollout.train_env_manager.tags": ("FrozenLake",)},
    "train_env_manager.num_groups_partition": {"rollout.train_env_manager.num_groups_partition": None},
    "val_env_manager.max_env_num_per_worker": {"rollout.val_env_manager.max_env_num_per_worker": 32},
    "val_env_manager.num_env_groups": {"rollout.val_env_manager.num_env_groups": 1024},
    "val_env_manager.group_size": {"rollout.val_env_manager.group_size": 1},
    "val_env_manager.tags": {
        "rollout.val_env_manager.tags": ("SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "FrozenLake")
    },
    "val_env_manager.num_groups_partition": {"rollout.val_env_manager.num_groups_partition": None},
}
RLVR = {
    "async_generation_ratio": {"async_generation_ratio": 1.0},
    "rollout_batch_size": {"rollout_batch_size": 512},  # 64 prompts × 8
    "prompt_length": {"model.max_prompt_tokens": 2048},
    "response_length": {"model.max_response_tokens": 8192},
    "max_steps": {"max_steps": 1000},
    "save_steps": {"save_steps": 100},
    "logging_steps": {"logging_steps": 1},
    "is_num_return_sequences_expand": UNNEEDED,
    "num_return_sequences_in_group": {"group_size": 8},
    "ppo_epochs": {"algorithm.ppo_epochs": 1},
    "adv_estimator": {"algorithm.adv_estimator": "reinforce"},
    "pretrain": {"model.path": "/data/cpfs_0/common/models/Qwen2.5-7B"},
    "reward_pretrain": UNNEEDED,
    "actor_train.model_args.dtype": {"model.dtype": "bf16"},
    "actor_train.training_args.learning_rate": {"learner.optimizer.learning_rate": 1e-6},
    "actor_train.training_args.weight_decay": {"learner.optimizer.weight_decay": 0.0},
    # 1 × 64 × (16 devices / 2 of a replica) = 512
    "actor_train.training_args.per_device_train_batch_size": {"learner.rows_per_microbatch": 8},
    "actor_train.training_args.gradient_accumulation_steps": {"algorithm.minibatch_size": 512},
    "actor_train.training_args.warmup_steps": {"learner.optimizer.warmup_steps": 1},
    "actor_train.data_args.template": UNNEEDED,
    "actor_train.data_args.file_name": {
        "tasks.train.math_rule.source": "data/math_deepmath_deal.jsonl",
        "tasks.train.math_rule.prompt_key": "prompt",
        "tasks.train.math_rule.answer_key": "ground_truth",
        "tasks.train.math_rule.rewards": ("numeric",),
    },
    "actor_train.strategy_args.strategy_name": UNNEEDED,
    "actor_train.strategy_args.strategy_config.tensor_model_parallel_size": {"learner.mesh.tensor": 2},
    "actor_train.strategy_args.strategy_config.pipeline_model_parallel_size": UNNEEDED,
    "actor_train.strategy_args.strategy_config.sequence_parallel": {"learner.sequence_parallel": True},
    "actor_train.strategy_args.strategy_config.use_distributed_optimizer": UNNEEDED,
    "actor_train.device_mapping": {
        "learner.devices": "gpu:0-15",
        "learner.hosts.number": 2,
        "learner.mesh.fsdp": 8,
        "launcher": "ray",
    },
    "actor_train.infer_batch_size": UNNEEDED,
    "actor_infer.model_args.dtype": {"sidecar.dtype": "fp16"},
    "actor_infer.generating_args.max_new_tokens": {"sidecar.generating_args.max_new_tokens": 8192},
    "actor_infer.generating_args.top_p": {"sidecar.generating_args.top_p": 0.99},
    "actor_infer.generating_args.top_k": {"sidecar.generating_args.top_k": 100},
    "actor_infer.generating_args.num_beams": UNNEEDED,
    "actor_infer.generating_args.temperature": {"sidecar.generating_args.temperature": 0.99},
    "actor_infer.generating_args.num_return_sequences": UNNEEDED,
    "actor_infer.strategy_args.strategy_name": "refused",
    "actor_infer.strategy_args.strategy_config.mem_fraction_static": {"sidecar.gpu_memory_utilization": 0.85},
    "actor_infer.strategy_args.strategy_config.load_format": {"sidecar.load_format": "dummy"},
    "actor_infer.device_mapping": {"sidecar.devices": "gpu", "sidecar.num_engines": 8},
    "actor_infer.infer_batch_size": UNNEEDED,
}
RUN = {"run_dir": "./checkpoints/<project_name>/<experiment_name>"}
_SET = "buffer.explorer_input.taskset"
SHARED: dict[str, Any] = {
    "project": RUN,
    "name": RUN,
    "checkpoint_root_dir": RUN,
    "algorithm.algorithm_type": {"algorithm.adv_estimator": "grpo", "algorithm.pg_variant": "ppo"},
    "algorithm.repeat_times": {"group_size": 8},
    "model.model_path": {"model.path": "Qwen/Qwen2.5-1.5B-Instruct"},
    "model.max_response_tokens": {"model.max_response_tokens": 1024},
    "model.max_model_len": {"model.max_prompt_tokens": 1024, "sidecar.max_model_len": 2048},
    "buffer.total_epochs": {"total_epochs": 1, "max_steps": 116},  # 7473 rows // 64
    f"{_SET}.name": {"tasks.train.gsm8k.source": "hub:openai/gsm8k"},
    f"{_SET}.storage_type": {"tasks.train.gsm8k.source": "hub:openai/gsm8k"},
    f"{_SET}.path": {"tasks.train.gsm8k.source": "hub:openai/gsm8k"},
    f"{_SET}.subset_name": {"tasks.train.gsm8k.subset": "main"},
    f"{_SET}.format.prompt_key": {"tasks.train.gsm8k.prompt_key": "question"},
    f"{_SET}.format.response_key": {"tasks.train.gsm8k.answer_key": "answer"},
    f"{_SET}.rollout_args.temperature": {"sidecar.generating_args.temperature": 1.0},
    f"{_SET}.default_workflow_type": {"tasks.train.gsm8k.rewards": ("numeric", "format")},
    "buffer.trainer_input.experience_buffer.name": UNNEEDED,
    "buffer.trainer_input.experience_buffer.storage_type": UNNEEDED,
    "buffer.trainer_input.experience_buffer.path": UNNEEDED,
    "synchronizer.sync_method": {"sync_method": "checkpoint"},
    "synchronizer.sync_interval": {"sync_interval": 10, "fill_interval": True, "async_generation_ratio": 0.0},
}
EXPLORER = SHARED | {
    "mode": {"mode": "explore"},
    "cluster.node_num": {"sidecar.devices": "gpu:4-7"},
    "cluster.gpu_per_node": {"sidecar.devices": "gpu:4-7"},
    "buffer.batch_size": {"rollout_batch_size": 512},
    f"{_SET}.split": {"tasks.train.gsm8k.split": "train"},
    "explorer.runner_per_model": {"sidecar.max_concurrency": 128},  # 16 × 8
    "explorer.rollout_model.engine_num": {"sidecar.num_engines": 4},
}
TRAINER = SHARED | {
    "mode": {"mode": "train"},
    "algorithm.optimizer.lr": {"learner.optimizer.learning_rate": 1e-6},
    "cluster.node_num": {"learner.devices": "gpu:0-3"},
    "cluster.gpu_per_node": {"learner.mesh.fsdp": 4},
    "buffer.train_batch_size": {"rollout_batch_size": 512},
    "trainer.grad_clip": {"learner.optimizer.grad_clip": 1.0},
    "trainer.use_dynamic_bsz": UNNEEDED,
    # 16384 / 2048 rows on each of 4 devices
    "trainer.max_token_len_per_gpu": {"learner.rows_per_microbatch": 32, "learner.max_tokens_per_row": 2048},
    "trainer.ulysses_sequence_parallel_size": {"learner.mesh.sequence": 1},
}
NEW = {key: value for key, value in EXPLORER.items() if key != f"{_SET}.split"} | {
    "cluster.node_num": {"sidecar.devices": "gpu:0-7"},
    "cluster.gpu_per_node": {"sidecar.devices": "gpu:0-7"},
    "explorer.name": {"explorer.name": "explorer_new"},
    f"{_SET}.path": {"explorer.tasksets.gsm8k.source": "hub:openai/gsm8k"},
    "explorer.runner_per_model": {"sidecar.max_concurrency": 64},  # 8 × 8
    "explorer.rollout_model.engine_num": {"sidecar.num_engines": 8},
}
DOCUMENTS = {
    "agentic_val_webshop_async.yaml": WEBSHOP,
    "agent_val_frozen_lake_async.yaml": LAKE,
    "rlvr_config_async.yaml": RLVR,
    "env_managers.yaml": MANAGERS,
    "explorer.yaml": EXPLORER,
    "trainer.yaml": TRAINER,
    "explorer_new.yaml": NEW,
}


@pytest.fixture(autouse=True)
def as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.delenv(name, raising=False)


def load(name: str) -> Config:
    return load_config(str(SEEDS / name), SETTLED if name == "rlvr_config_async.yaml" else {})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_of_a_document_becomes_what_it_means(name: str) -> None:
    rows = {row.path: row for row in translate(str(SEEDS / name)).rows if row.given}
    assert sorted(rows) == sorted(DOCUMENTS[name])
    for path, wanted in DOCUMENTS[name].items():
        row = rows[path]
        if isinstance(wanted, str):
            assert (row.here, row.refused, bool(row.remark)) == ({}, wanted == "refused", True), path
        else:
            assert {key: row.here.get(key) for key in wanted} == wanted, path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_resolves_and_holds_what_its_rows_say(name: str) -> None:
    config = as_plain(load(name))
    for row in translate(str(SEEDS / name)).rows:
        for key, value in row.here.items():
            if row.given and key not in SETTLED:
                here: Any = config
                for part in key.split("."):
                    here = here[part] if isinstance(here, dict) else getattr(here, part)
                assert here == value, key


def test_what_one_document_refuses_comes_at_once() -> None:
    with pytest.raises(RefusedConfig) as refused:
        load_config(str(SEEDS / "rlvr_config_async.yaml"))
    lines = str(refused.value).splitlines()
    assert lines[0] == "rlvr_config_async.yaml: ROLL's keys that are refused:"
    assert [line.split(" = ")[0].strip() for line in lines[1:]] == [
        "actor_infer.strategy_args.strategy_name",
    ]
    assert all("write" in line for line in lines[1:])


def test_the_pair_is_one_run_whose_parts_have_gpus_of_their_own() -> None:
    config = load_config(f"{SEEDS / 'explorer.yaml'},{SEEDS / 'trainer.yaml'}")
    assert (config.mode, config.learner.devices, config.sidecar.devices) == ("both", "gpu:0-3", "gpu:4-7")
    assert (config.sidecar.num_engines, config.sidecar.max_concurrency) == (4, 128)
    assert config.learner.rows_per_microbatch == 32
    other = load_config(f"{SEEDS / 'trainer.yaml'},{SEEDS / 'explorer.yaml'}")
    assert as_plain(other) == as_plain(config)


def test_the_pair_and_its_parts_are_the_same_run() -> None:
    from rljax.ledger.run_spec import RunSpec

    names = ("explorer.yaml", "trainer.yaml", "explorer_new.yaml")
    specs = {RunSpec.of(load(name)) for name in names}
    assert len(specs) == 1
    assert len({load(name).run_dir for name in names}) == 1
    assert specs.pop().staleness_bound == 9  # sync_interval + sync_offset - 1


def test_trinity_s_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_MODEL_PATH", "tiny")
    monkeypatch.setenv("TRINITY_TASKSET_PATH", "mine.jsonl")
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", "/somewhere/")
    config = load("explorer.yaml")
    taskset = config.tasks.train["gsm8k"]
    assert (config.model.path, taskset.source, taskset.subset, taskset.split) == ("tiny", "mine.jsonl", None, None)
    assert config.run_dir == "/somewhere/<project_name>/<experiment_name>"


def test_a_shop_validates_on_goals_that_are_held_out() -> None:
    config = load("agentic_val_webshop_async.yaml")
    assert config.rollout.train_env_manager.tags == ("WebShopEnv",)
    assert config.rollout.val_env_manager.tags == ("WebShopEnvHeldOut",)
    train, held_out = (config.custom_envs[tag] for tag in ("WebShopEnv", "WebShopEnvHeldOut"))
    assert (train.kwargs["split"], held_out.kwargs["split"]) == ("train", "validation")
    assert (train.format_penalty, held_out.format_penalty) == (0.05, 0.05)
    assert train.template == held_out.template


def test_the_hand_made_lake_is_the_translated_one() -> None:
    """But for what the two choose: a launcher, a seed, and the budget of prompts, which no environment reads."""
    ours = as_plain(load_config(str(SEEDS.parents[2] / "configs" / "agentic_frozen_lake_async.py")))
    theirs = as_plain(load("agent_val_frozen_lake_async.yaml"))
    for part in ("learner", "rollout"):
        assert theirs[part] == ours[part]
    assert theirs["sidecar"] | {"max_concurrency": 64, "dtype": "auto"} == ours["sidecar"]
    for tag in ours["rollout"]["val_env_manager"]["tags"]:
        assert theirs["custom_envs"][tag]["template"] == ours["custom_envs"][tag]["template"]
        assert theirs["custom_envs"][tag]["format_penalty"] == ours["custom_envs"][tag]["format_penalty"]
