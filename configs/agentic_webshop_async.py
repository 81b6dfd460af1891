"""WebShop with Qwen2.5-7B-Instruct, a batch ahead: ROLL's ``agentic_val_webshop_async.yaml`` in our words.

    python -m rljax.main --config=configs/agentic_webshop_async.py --config.custom_envs.WebShop.kwargs.products=…

For a node of eight GPUs, four of which train. Without the published product and goal files (`products`, `attributes`
and `goals` among the arguments of both environments) it shops in the synthetic catalogue. Validation has other goals.
Needs the extras webshop, vllm and ray.
"""

import dataclasses

from ml_collections import ConfigDict

from rljax.config.environments import EnvironmentConfig, TrainEnvManagerConfig, ValEnvManagerConfig, built_in
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
    "Turn {turn_idx}:\nState:\n{observation}\n{suffix}\nYou have {actions_left} actions left. Always output: "
    "<answer> [your answer] </answer> with no extra text. Strictly follow this format. Max response length: "
    "{max_response_length} words (tokens).\nDecide the next action:\n"
)


def get_config() -> ConfigDict:
    shop = EnvironmentConfig(
        id="rljax/WebShop-v0",
        kwargs={"split": "train"},
        system_prompt=PLAYER,
        template=TURN,
        format_penalty=0.05,
        max_actions=10,
    )
    held_out = dataclasses.replace(shop, kwargs={"split": "validation"})
    config = Config(
        launcher="ray",
        async_generation_ratio=1.0,
        rollout_batch_size=64,
        group_size=8,
        val_batch_size=64,
        max_steps=1024,
        save_steps=10000,
        logging_steps=1,
        eval_steps=10,
        model=ModelConfig(
            path="Qwen/Qwen2.5-7B-Instruct",
            dtype="bf16",
            remat="full",
            max_response_tokens=1024,
            sequence_length=8192,
        ),
        learner=LearnerConfig(
            devices="gpu:0-3",
            mesh=MeshConfig(fsdp=4),
            optimizer=OptimizerConfig(learning_rate=1e-6, weight_decay=0.0, warmup_steps=10, schedule="linear"),
            rows_per_microbatch=4,
        ),
        algorithm=AlgorithmConfig(adv_estimator="grpo", ppo_epochs=1, whiten_advantages=True),
        sidecar=SidecarConfig(
            engine="vllm",
            num_engines=4,
            devices="gpu:4-7",
            gpu_memory_utilization=0.8,
            block_size=16,
            load_format="auto",
            generating_args=GeneratingConfig(temperature=0.99, top_p=0.99, top_k=100, max_new_tokens=1024),
            val_generating_args=GeneratingConfig(temperature=0.0, max_new_tokens=1024),
        ),
        rollout=RolloutConfig(
            train_env_manager=TrainEnvManagerConfig(tags=("WebShop",), num_env_groups=8, max_env_num_per_worker=16),
            val_env_manager=ValEnvManagerConfig(tags=("WebShopHeldOut",), num_env_groups=64, max_env_num_per_worker=16),
        ),
        custom_envs=built_in() | {"WebShop": shop, "WebShopHeldOut": held_out},
    )
    return to_config_dict(config)
