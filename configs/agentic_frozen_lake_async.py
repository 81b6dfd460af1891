"""FrozenLake with Qwen2.5-0.5B-Instruct, a batch ahead, validated on four games: ROLL's agentic example in our words.

    python -m rljax.main --config=configs/agentic_frozen_lake_async.py

For a node of eight GPUs, four of which train; 1024 environments play at once. Needs the extras vllm and ray.
`configs/frozen_lake.py` is the same game for a laptop.
"""

import dataclasses

from ml_collections import ConfigDict

from rljax.config.environments import TrainEnvManagerConfig, ValEnvManagerConfig, built_in
from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    GeneratingConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    SidecarConfig,
)

PLAYER = "You're a helpful assistant. You are a good game player. You are aiming to get high reward in the game."
TURN = (
    "Turn {turn_idx}:\nState:\n{observation}\nYou have {actions_left} actions left. Always output: <answer> [your "
    "answer] </answer> with no extra text. Strictly follow this format. Max response length: {max_response_length} "
    "words (tokens).\nDecide the next action:\n"
)
GAMES = ("SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "FrozenLake")


def get_config() -> ConfigDict:
    environments = {
        tag: dataclasses.replace(
            environment, system_prompt=PLAYER, template=TURN, max_actions=10, max_tokens_per_turn=128
        )
        if tag in GAMES
        else environment
        for tag, environment in built_in().items()
    }
    config = Config(
        launcher="ray",
        async_generation_ratio=1.0,
        rollout_batch_size=1024,
        group_size=8,
        val_batch_size=1024,
        max_steps=1024,
        save_steps=10000,
        logging_steps=1,
        eval_steps=10,
        model=ModelConfig(
            path="Qwen/Qwen2.5-0.5B-Instruct",
            dtype="bf16",
            remat="full",
            max_response_tokens=128,
            sequence_length=8192,
        ),
        learner=LearnerConfig(
            devices="gpu:0-3",
            mesh=MeshConfig(fsdp=4),
            optimizer=OptimizerConfig(learning_rate=1e-6, weight_decay=0.0, warmup_steps=10, schedule="linear"),
            rows_per_microbatch=8,
        ),
        algorithm=AlgorithmConfig(adv_estimator="grpo", ppo_epochs=1, whiten_advantages=True, advantage_clip=0.2),
        sidecar=SidecarConfig(
            engine="vllm",
            num_engines=4,
            devices="gpu:4-7",
            gpu_memory_utilization=0.8,
            block_size=16,
            load_format="auto",
            generating_args=GeneratingConfig(temperature=0.99, top_p=0.99, top_k=100, max_new_tokens=128),
            val_generating_args=GeneratingConfig(temperature=0.0, max_new_tokens=128),
        ),
        rollout=RolloutConfig(
            train_env_manager=TrainEnvManagerConfig(
                max_env_num_per_worker=16, num_env_groups=128, tags=("FrozenLake",)
            ),
            val_env_manager=ValEnvManagerConfig(
                max_env_num_per_worker=32,
                num_env_groups=1024,
                group_size=1,
                tags=GAMES,
            ),
        ),
        custom_envs=environments,
    )
    return to_config_dict(config)
