"""Values that ROLL and Trinity-RFT publish, and files leave unsaid: environments, blocks of ``defaults:``, examples."""

from __future__ import annotations

from typing import Any

from envs import OTHER_SYMBOLS

PLAYER = "You're a helpful assistant. You are a good game player. You are aiming to get high reward in the game."
_TURN = (
    "Turn {{turn_idx}}:\nState:\n{{observation}}\n{suffix}You have {{actions_left}} actions left. Always output: "
    "<answer> [your answer] </answer> with no extra text. Strictly follow this format. Max response length: "
    "{{max_response_length}} words (tokens).\nDecide the next action:\n"
)
TURN, SHOP_TURN = _TURN.format(suffix=""), _TURN.format(suffix="{suffix}\n")
_STEP = (
    "Environment:\n{env_instruction}\n\nYour last {history_length} turns:\n{history}\n\nTurn {turn_idx}. State:\n"
    "{observation}\n{suffix}\nAlways output: <answer> [your answer] </answer> with no extra text. Max response length: "
    "{max_response_length} words (tokens).\nDecide the next action:\n"
)
MATH_WORKFLOW = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think>\n<answer> answer here </answer>."
)
"""System message of Trinity-RFT's ``math_workflow``, after DeepSeek-R1."""
ROWS = {("openai/gsm8k", "main", "train"): 7473}
"""Rows of data sets whose size a schedule needs before they are read: (id, subset, split)."""
_ROOMS: dict[str, dict[str, Any]] = {
    "SimpleSokoban": {"dim_room": [6, 6], "num_boxes": 1},
    "LargerSokoban": {"dim_room": [10, 10], "num_boxes": 2, "search_depth": 10},
    "SokobanDifferentGridVocab": {
        "dim_room": [6, 6],
        "num_boxes": 1,
        "search_depth": 30,
        "grid_vocab": OTHER_SYMBOLS,
    },
}


def environments(manager: str, sokoban_penalty: float, template: str, shop_template: str) -> dict[str, Any]:
    """Returns the groups of ``custom_env`` that ROLL publishes, by tag."""
    common = {"max_steps": 10, "max_tokens_per_step": 128, "env_manager_cls": manager, "use_thread_lock": True}
    common["agent_system_template"] = PLAYER
    if manager.endswith("StepEnvManager"):
        common["history_length"] = 5

    def made(kind: str, penalty: float, text: str, pattern: str = "<answer>(.*?)</answer>", **more: Any) -> Any:
        inner = {"action_pattern": pattern, "max_steps": 10, "format_penalty": penalty, **more}
        return {"env_type": kind, **common, "agent_template": text, "env_config": inner}

    think = r"<think>(.*?)</think>\s*<answer>(.*?)</answer>"
    return {
        **{tag: made("sokoban", sokoban_penalty, template, **room) for tag, room in _ROOMS.items()},
        "FrozenLake": made("frozen_lake", -0.01, template, is_slippery=False),
        "FrozenLakeThink": made("frozen_lake", -0.01, template, think, is_slippery=False),
        "WebShopEnv": made("webshop", -0.05, shop_template, observation_mode="text"),
    }


_MANAGERS = "roll.pipeline.agentic.env_manager"
_TRAJ = f"{_MANAGERS}.traj_env_manager.TrajEnvManager"
_VARIABLES: dict[str, Any] = {
    "all_response_pattern": "^(.*)$",
    "action_pattern": "<answer>(.*?)</answer>",
    "think_action_pattern": r"<think>(.*?)</think>\s*<answer>(.*?)</answer>",
    "max_tokens_per_step": 128,
    "max_actions_per_traj": 10,
    "frozen_format_penalty": -0.01,
    "agent_system_template": PLAYER,
    "agent_template": TURN,
}
TRAJECTORY_ENVIRONMENTS = environments(_TRAJ, -0.15, TURN, SHOP_TURN)
BLOCKS: dict[str, dict[str, Any]] = {
    "traj_envs": {
        **_VARIABLES,
        "sokoban_format_penalty": -0.15,
        "env_manager_cls": _TRAJ,
        "custom_env": TRAJECTORY_ENVIRONMENTS,
    },
    "step_envs": {
        **_VARIABLES,
        "sokoban_format_penalty": -0.05,
        "default_history_length": 5,
        "agent_template": _STEP,
        "env_manager_cls": f"{_MANAGERS}.step_env_manager.StepEnvManager",
        "custom_env": environments(f"{_MANAGERS}.step_env_manager.StepEnvManager", -0.05, _STEP, _STEP),
    },
    "deepspeed_zero": {"deepspeed_zero": {"zero_optimization": {"stage": 0}}},
    "deepspeed_zero2": {"deepspeed_zero2": {"zero_optimization": {"stage": 2}}},
    "deepspeed_zero3": {"deepspeed_zero3": {"zero_optimization": {"stage": 3}}},
    "deepspeed_zero3_cpuoffload": {
        "deepspeed_zero3_cpuoffload": {
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu"},
                "offload_param": {"device": "cpu"},
            }
        }
    },
}
"""Blocks that ROLL's files name in ``defaults:``, with what they put beside the keys of the file."""

_LAKE: dict[str, Any] = {
    "pretrain": "Qwen/Qwen2.5-0.5B-Instruct",
    "async_generation_ratio": 1,
    "rollout_batch_size": 1024,
    "val_batch_size": 1024,
    "sequence_length": 8192,
    "max_steps": 1024,
    "save_steps": 10000,
    "adv_estimator": "grpo",
    "whiten_advantages": True,
    "train_env_manager": {
        "max_env_num_per_worker": 16,
        "num_env_groups": 128,
        "group_size": 8,
        "tags": ["FrozenLake"],
    },
    "val_env_manager": {
        "max_env_num_per_worker": 32,
        "num_env_groups": 1024,
        "group_size": 1,
        "tags": ["SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "FrozenLake"],
    },
    "actor_train": {
        "training_args": {
            "learning_rate": 1e-6,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 128,
            "warmup_steps": 10,
        },
        "device_mapping": "list(range(0,4))",
    },
    "actor_infer": {
        "generating_args": {"max_new_tokens": 128, "top_p": 0.99, "top_k": 100, "temperature": 0.99},
        "strategy_args": {"strategy_name": "vllm", "strategy_config": {"gpu_memory_utilization": 0.8}},
        "device_mapping": "list(range(4,8))",
    },
}
_SHOP_MANAGER = {"max_env_num_per_worker": 16, "group_size": 8, "num_env_groups": 8, "tags": ["WebShopEnv"]}
EXAMPLES: dict[str, dict[str, Any]] = {
    "agent_val_frozen_lake_async": _LAKE,
    "agentic_val_webshop_async": {
        "train_env_manager": _SHOP_MANAGER,
        "val_env_manager": {
            **_SHOP_MANAGER,
            "group_size": 1,
            "num_env_groups": 64,
        },
    },
    "rlvr_config_async": {
        "rewards": {
            "math_rule": {
                "worker_cls": "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker",
                "tag_included": ["deepmath_103k", "aime"],
            }
        },
    },
}
"""By the name of a file that ROLL publishes: what its excerpts in the documentation leave out."""
FRAGMENT = _LAKE
"""Completes an excerpt of environments alone, which names no model."""
