"""FrozenLake: a tiny model, from scratch, learns to walk over frozen lakes, a step a turn.

    python -m rljax.main --config=configs/frozen_lake.py

Every map has 16 fields, and every group of episodes a map of its own. The model sees the map after each step, in one
dialogue, and answers with one letter.

Expected: success on held-out maps from 0 (a player that walks at random: 0.19) to at least 0.6, on two cores.
"""

from ml_collections import ConfigDict

from rljax.config.environments import EnvironmentConfig, TrainEnvManagerConfig, ValEnvManagerConfig, built_in
from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    LearnerConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    SidecarConfig,
    TinyConfig,
)


def get_config() -> ConfigDict:
    lake = EnvironmentConfig(
        id="rljax/FrozenLake-v0",
        kwargs={"words": ["L", "D", "R", "U"], "remarks": False},
        place="loop",
        first_template="",
        template="{observation}",
        action_pattern="(.)",
        format_penalty=0.01,
        max_actions=8,
        max_tokens_per_turn=1,
    )
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=512,
        group_size=16,
        max_steps=100,
        save_steps=50,
        eval_steps=25,
        model=ModelConfig(
            path="tiny",
            max_response_tokens=1,
            sequence_length=200,
            tiny=TinyConfig(hidden_size=96, intermediate_size=192, num_layers=3, characters="_OGPX√\nLDRU"),
        ),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(
                learning_rate=2e-3, schedule="cosine", min_lr_ratio=0.1, warmup_steps=10, beta2=0.99
            ),
            rows_per_microbatch=32,
        ),
        algorithm=AlgorithmConfig(
            adv_estimator="gigpo",
            pg_variant="ppo",
            loss={"clip_low": 0.5, "clip_high": 1.0},
            entropy_coef=0.05,
            minibatch_size=256,
        ),
        sidecar=SidecarConfig(max_concurrency=512),
        rollout=RolloutConfig(
            train_env_manager=TrainEnvManagerConfig(tags=("FrozenLake",), num_env_groups=32),
            val_env_manager=ValEnvManagerConfig(tags=("FrozenLake",), num_env_groups=256),
        ),
        custom_envs=built_in() | {"FrozenLake": lake},
    )
    return to_config_dict(config)
