"""The smallest config that does everything a run does: used by the tests that run the program as a user does."""

from ml_collections import ConfigDict

from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    LearnerConfig,
    ModelConfig,
    ObserveConfig,
    OptimizerConfig,
    RolloutConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TinyConfig,
)


def get_config() -> ConfigDict:
    digits = TasksetConfig(source="reverse_digits", rewards=("digits",), args={"digits": 2})
    tiny = TinyConfig(
        hidden_size=32,
        intermediate_size=64,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        characters="0123456789",
    )
    config = Config(
        async_generation_ratio=0.0,
        rollout_batch_size=16,
        group_size=4,
        max_steps=6,
        save_steps=2,
        eval_steps=3,
        val_batch_size=8,
        wait_timeout=600.0,
        model=ModelConfig(path="tiny", max_prompt_tokens=12, max_response_tokens=4, tiny=tiny),
        learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=1e-3), rows_per_microbatch=8),
        algorithm=AlgorithmConfig(adv_estimator="rloo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=16, decode_steps=4),
        rollout=RolloutConfig(claim_timeout=10.0),
        tasks=TasksConfig(train={"digits": digits}, validation={"digits": digits}),
        observe=ObserveConfig(progress="off", tensorboard=False),
    )
    return to_config_dict(config)
