"""SmolLM2-135M-Instruct walks over frozen lakes in a dialogue, a move a turn.

    python -m rljax.main --config=configs/smollm2_frozen_lake.py --config.sidecar.engine=vllm

Shows a real chat model in an environment of many turns; a tiny model that learns the game is in `frozen_lake.py`. The
report steps through the dialogues and marks which version of the weights said what. A step takes a few minutes on two
cores: 32 dialogues of up to six turns.
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
)


def get_config() -> ConfigDict:
    lake = EnvironmentConfig(
        id="rljax/FrozenLake-v0",
        place="loop",
        first_template="P is you, O a hole, G the goal, _ ice, X you in a hole. Reach the goal, avoid the holes.\n\n",
        template="{observation}\nAnswer with one word: Left, Down, Right or Up.",
        action_pattern="(Left|Down|Right|Up)",
        format_penalty=0.01,
        max_actions=6,
        max_tokens_per_turn=8,
    )
    config = Config(
        async_generation_ratio=1.0,
        rollout_batch_size=32,
        group_size=8,
        max_steps=20,
        save_steps=10,
        eval_steps=10,
        model=ModelConfig(path="smollm2-135m", max_response_tokens=8, sequence_length=640),
        learner=LearnerConfig(
            optimizer=OptimizerConfig(learning_rate=1e-5, warmup_steps=5),
            rows_per_microbatch=2,
        ),
        algorithm=AlgorithmConfig(adv_estimator="gigpo", pg_variant="ppo"),
        sidecar=SidecarConfig(max_concurrency=32, decode_steps=4),
        rollout=RolloutConfig(
            train_env_manager=TrainEnvManagerConfig(tags=("FrozenLake",)),
            val_env_manager=ValEnvManagerConfig(tags=("FrozenLake",), num_env_groups=16),
        ),
        custom_envs=built_in() | {"FrozenLake": lake},
    )
    return to_config_dict(config)
