"""Small files of ROLL and Trinity-RFT, and what becomes of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljax.config.importers.translate import translate
from rljax.config.load import load_config
from rljax.config.refusals import RefusedConfig

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parents[1] / "data" / "seeds"
ROLL = """
pretrain: Qwen/Qwen2.5-0.5B-Instruct
adv_estimator: grpo
sequence_length: 2048
rollout_batch_size: 64
val_batch_size: 32
train_env_manager: {tags: [FrozenLake], num_env_groups: 8, group_size: 8, num_groups_partition: [8]}
val_env_manager: {tags: [FrozenLake, SimpleSokoban], num_env_groups: 64, group_size: 1, num_groups_partition: [32, 32]}
actor_train:
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 8}
  device_mapping: list(range(0,4))
actor_infer:
  generating_args: {max_new_tokens: 128}
  device_mapping: list(range(4,8))
"""
RLVR = """
pretrain: Qwen/Qwen2.5-7B
adv_estimator: reinforce
rollout_batch_size: 16
num_return_sequences_in_group: 4
prompt_length: 512
response_length: 1024
rewards: {math_rule: {worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker}}
actor_train:
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 16}
  data_args: {file_name: [a.jsonl, b.jsonl], prompt: question}
  device_mapping: "[0, 1]"
actor_infer: {device_mapping: [2]}
"""
TRINITY = """
project: p
name: n
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: Qwen/Qwen2.5-1.5B-Instruct, max_response_tokens: 512, max_model_len: 1024}
cluster: {node_num: 1, gpu_per_node: 8}
buffer:
  batch_size: 8
  total_steps: 20
  explorer_input: {taskset: {name: t, path: train.jsonl}}
explorer: {rollout_model: {engine_num: 2}}
"""


def small() -> tuple[str, list[str]]:
    """The file and the overrides of "Run it small" in docs/from_roll.md."""
    page = (ROOT / "docs" / "from_roll.md").read_text()
    block = re.search(r"^## Run it small\n.*?```sh\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    _, _, _, file, *overrides = shlex.split(block[1].replace("\\\n", ""))
    return file.removeprefix("--config="), [override.removeprefix("--config.") for override in overrides]


def refused(path: str, **overrides: Any) -> dict[str, str]:
    return {row.path: row.remark for row in translate(path).refusals(overrides)}


def nested(text: str, path: str, value: Any) -> str:
    """The document with one key set."""
    document = yaml.safe_load(text)
    here = document
    *above, name = path.split(".")
    for part in above:
        here = here.setdefault(part, {})
    here[name] = value
    return str(yaml.safe_dump(document))


def changed(text: str, keys: dict[str, Any], left_out: str = "") -> str:
    for key, value in keys.items():
        text = nested(text, key, value)
    document = yaml.safe_load(text)
    *above, name = left_out.split(".")
    here = document
    for part in above:
        here = here[part]
    here.pop(name, None)
    return str(yaml.safe_dump(document))


def lines(path: str, overrides: dict[str, str] | None = None) -> list[str]:
    """The lines of the table that a config is refused with."""
    with pytest.raises(RefusedConfig) as refused:
        load_config(path, overrides or {})
    return [" ".join(line.split()) for line in str(refused.value).splitlines()[1:]]
