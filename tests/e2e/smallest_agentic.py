"""The smallest config that plays environments: used by the tests that run the program as a user does."""

import dataclasses

from ml_collections import ConfigDict

from rljax.config.environments import EnvironmentConfig, TrainEnvManagerConfig, ValEnvManagerConfig, built_in
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
    TinyConfig,
)


def get_config() -> ConfigDict:
    tiny = TinyConfig(
        hidden_size=32,
        intermediate_size=64,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        characters="_OGPX√\nLDRU",
    )
    lake = EnvironmentConfig(
        id="rljax/FrozenLake-v0",
        kwargs={"words": ["L", "D", "R", "U"], "remarks": False},
        place="loop",
        first_template="",
        template="{observation}",
        action_pattern="(.)",
        format_penalty=0.01,
        max_actions=4,
        max_tokens_per_turn=1,
    )
    sokobans = {
        tag: dataclasses.replace(
            environment,
            first_template="",
            template="{observation}",
            action_pattern="(.)",
            max_actions=3,
            max_tokens_per_turn=1,
        )
        for tag, environment in built_in().items()
        if "Sokoban" in tag
    }
    bad = EnvironmentConfig(
        id="tests.rollout.environments.bad:Bad-v0",
        first_template="",
        template="{observation}",
        max_actions=3,
        max_tokens_per_turn=1,
    )
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=32,
        group_size=4,
        max_steps=4,
        save_steps=2,
        eval_steps=2,
        wait_timeout=600.0,
        model=ModelConfig(path="tiny", max_prompt_tokens=40, max_response_tokens=4, sequence_length=120, tiny=tiny),
        learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=1e-3), rows_per_microbatch=8),
        algorithm=AlgorithmConfig(adv_estimator="gigpo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=32, decode_steps=1),
        rollout=RolloutConfig(
            claim_timeout=10.0,
            train_env_manager=TrainEnvManagerConfig(tags=("FrozenLake",), num_env_groups=8),
            val_env_manager=ValEnvManagerConfig(tags=("FrozenLake",), num_env_groups=8),
        ),
        custom_envs={"FrozenLake": lake, "Bad": bad, **sokobans},
        observe=ObserveConfig(progress="off", tensorboard=False),
    )
    return to_config_dict(config)
