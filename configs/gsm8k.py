"""GRPO on GSM8K, as in Trinity-RFT's asynchronous example: Qwen2.5-1.5B-Instruct, 8 answers a question.

    python -m rljax.main --config=configs/gsm8k.py                        # from the hub
    python -m rljax.main --config=configs/gsm8k.py:train.jsonl,test.jsonl # from files, the second held out

Three steps with a small model on two cores:

    python -m rljax.main --config=configs/gsm8k.py:train.jsonl,test.jsonl --config.model.path=smollm2-135m \\
        --config.max_steps=3 --config.rollout_batch_size=16 --config.model.max_response_tokens=128 \\
        --config.val_batch_size=32 --config.model.dtype=fp32 --config.learner.rows_per_microbatch=1
"""

import dataclasses

from ml_collections import ConfigDict

from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    LearnerConfig,
    ModelConfig,
    OptimizerConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)

SYSTEM = "You are a helpful assistant. Reason step by step, and put the final answer within \\boxed{}."


def get_config(arg: str | None = None) -> ConfigDict:
    """``arg``: FILE or FILE,HELD_OUT_FILE; without it, openai/gsm8k from the hub."""
    train, _, held_out = (arg or "").partition(",")
    asked = TasksetConfig(source="hub:openai/gsm8k", subset="main", system_prompt=SYSTEM, rewards=("numeric",))
    if train:
        asked = dataclasses.replace(asked, source=train, subset=None)
        validation = {"gsm8k": dataclasses.replace(asked, source=held_out)} if held_out else {}
    else:
        validation = {"gsm8k": dataclasses.replace(asked, split="test")}
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=512,
        group_size=8,
        total_epochs=1,
        max_steps=116,
        sync_interval=10,
        save_steps=10,
        eval_steps=10,
        val_batch_size=128,
        model=ModelConfig(
            path="Qwen/Qwen2.5-1.5B-Instruct",
            dtype="bf16",
            remat="full",
            max_prompt_tokens=1024,
            max_response_tokens=1024,
        ),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(learning_rate=1e-6), max_tokens_per_row=2048, rows_per_microbatch=8
        ),
        algorithm=AlgorithmConfig(adv_estimator="grpo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=64),
        tasks=TasksConfig(train={"gsm8k": asked}, validation=validation),
    )
    return to_config_dict(config)
