"""Quickstart: a tiny model, from scratch, learns to reverse four digits while the engine generates one batch ahead.

    python -m rljax.main --config=configs/quickstart.py

Expected: held-out score (share of digits right) from about 0.1 to at least 0.9, in under two minutes on two cores.
Try `--config.async_generation_ratio=0`, `4` or `16`, `--config.algorithm.pg_variant=tis`, `--config.seed=1`.
"""

from ml_collections import ConfigDict

from rljax.config import (
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
from rljax.config_edge import to_config_dict


def get_config() -> ConfigDict:
    taskset = TasksetConfig(source="reverse_digits", rewards=("digits",), args={"digits": 4})
    held_out = TasksetConfig(source="reverse_digits", rewards=("digits",), args={"digits": 4}, limit=256)
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=512,
        group_size=8,
        max_steps=150,
        save_steps=50,
        eval_steps=25,
        model=ModelConfig(
            path="tiny",
            max_prompt_tokens=8,
            max_response_tokens=4,
            tiny=TinyConfig(hidden_size=128, characters="0123456789"),
        ),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(
                learning_rate=3e-3, schedule="cosine", min_lr_ratio=0.1, warmup_steps=10, beta2=0.99
            ),
            max_tokens_per_row=65,
            rows_per_microbatch=11,
        ),
        algorithm=AlgorithmConfig(
            adv_estimator="rloo",
            pg_variant="ppo",
            clip_low=0.4,
            clip_high=0.4,
            entropy_coef=0.02,
            minibatch_size=128,
        ),
        sidecar=SidecarConfig(max_concurrency=512),
        tasks=TasksConfig(train={"reverse_digits": taskset}, validation={"reverse_digits": held_out}),
    )
    return to_config_dict(config)
