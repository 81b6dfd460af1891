"""Quickstart: a tiny model, from scratch, learns to reverse three digits while the engine generates one batch ahead.

    python -m rljax.main --config=configs/quickstart.py

Expected: held-out score (share of digits right) from 0.05 to at least 0.9, in two to three minutes on two cores,
with `--config.async_generation_ratio` 0, 1, 4 or 16: the trust region is wide enough for tokens 16 steps old, and the
entropy bonus keeps every digit explored until it is right (the middle one is found last).
"""

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
    TinyConfig,
)


def get_config() -> ConfigDict:
    taskset = TasksetConfig(source="reverse_digits", rewards=("digits",), args={"digits": 3})
    held_out = TasksetConfig(source="reverse_digits", rewards=("digits",), args={"digits": 3})
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=512,
        group_size=16,
        max_steps=160,
        save_steps=50,
        eval_steps=20,
        model=ModelConfig(
            path="tiny",
            max_prompt_tokens=6,
            max_response_tokens=3,
            tiny=TinyConfig(hidden_size=96, intermediate_size=192, num_layers=3, characters="0123456789"),
        ),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(
                learning_rate=3e-3, schedule="cosine", min_lr_ratio=0.1, warmup_steps=10, beta2=0.99
            ),
            max_tokens_per_row=65,
            rows_per_microbatch=16,
        ),
        algorithm=AlgorithmConfig(
            adv_estimator="grpo",
            pg_variant="ppo",
            loss={"clip_low": 0.8, "clip_high": 3.0},
            entropy_coef=0.32,
            minibatch_size=128,
        ),
        sidecar=SidecarConfig(max_concurrency=512),
        tasks=TasksConfig(train={"reverse_digits": taskset}, validation={"reverse_digits": held_out}),
    )
    return to_config_dict(config)
