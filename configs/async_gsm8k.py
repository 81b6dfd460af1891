"""Trinity-RFT's asynchronous example (`examples/async_gsm8k`): GRPO on GSM8K, trainer and explorer apart.

    python -m rljax.main --config=configs/async_gsm8k.py:train        # trainer.yaml
    python -m rljax.main --config=configs/async_gsm8k.py:explore      # explorer.yaml, in another shell, in any order
    python -m rljax.main --config=configs/async_gsm8k.py:explore_new  # explorer_new.yaml: joins and leaves at any time
    python -m rljax.main --config=configs/async_gsm8k.py:both         # trainer and explorer in one process

TRINITY_MODEL_PATH, TRINITY_TASKSET_PATH (a hub id, FILE.jsonl or FILE.parquet) and TRINITY_CHECKPOINT_ROOT_DIR act as
they do there. Without accelerators, three shells with a small model, each with its mode in place of MODE:

    TRINITY_MODEL_PATH=tiny TRINITY_TASKSET_PATH=train.jsonl python -m rljax.main \\
        --config=configs/async_gsm8k.py:MODE --config.sidecar.engine=embedded --config.sidecar.dtype=auto \\
        --config.sidecar.num_engines=1 --config.sidecar.max_concurrency=16 \\
        --config.sidecar.devices=cpu --config.learner.devices=cpu --config.learner.mesh.fsdp=1 \\
        --config.learner.rows_per_microbatch=1 --config.model.dtype=fp32 --config.rollout_batch_size=16 \\
        --config.model.max_prompt_tokens=1984 --config.model.max_response_tokens=64 \\
        --config.max_steps=4 --config.sync_interval=2

(A tiny model reads characters, hence the long prompts; smollm2-135m does with 448 prompt tokens, and takes minutes.)
"""

import os
from pathlib import Path

from ml_collections import ConfigDict

from rljax.config.load import to_config_dict
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    ExplorerConfig,
    GeneratingConfig,
    KlConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.config.validate import ConfigError

MODES = ("both", "train", "explore", "explore_new")
REPEAT_TIMES = 8
# What `math_workflow` says, after DeepSeek-R1.
SYSTEM = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think>\n<answer> answer here </answer>."
)


def gsm8k() -> TasksetConfig:
    """``buffer.explorer_input.taskset``."""
    path = os.environ.get("TRINITY_TASKSET_PATH", "openai/gsm8k")
    file = path.endswith((".jsonl", ".parquet"))
    return TasksetConfig(
        source=path if file else f"hub:{path}",
        subset=None if file else "main",
        split=None if file else "train",
        prompt_key="question",
        answer_key="answer",  # response_key
        system_prompt=SYSTEM,
        # default_workflow_type math_workflow: 1 for the answer, ±0.1 for the format: to a group, as 0 or 0.2
        rewards=("numeric", "format"),
        reward_weights=(1.0, 0.2),
        shuffle=False,  # its tasksets are read in their order
    )


def engines(new: bool) -> SidecarConfig:
    """``explorer.rollout_model``; ``new``: that of explorer_new.yaml, with 8 GPUs of its own."""
    runner_per_model = 8 if new else 16
    return SidecarConfig(
        engine="vllm_async",
        tensor_parallel_size=1,
        dtype="bf16",
        max_model_len=2048,
        enable_prefix_caching=True,  # this and what follows are its defaults
        enforce_eager=False,
        gpu_memory_utilization=0.9,
        seed=42,
        num_engines=8 if new else 4,  # engine_num
        max_concurrency=runner_per_model * REPEAT_TIMES,  # a runner has a task, which is repeat_times attempts
        devices="gpu:0-7" if new else "gpu:4-7",  # gpu_per_node
        generating_args=GeneratingConfig(temperature=1.0),  # rollout_args
    )


def get_config(arg: str = "both") -> ConfigDict:
    """``arg``: both, train, explore or explore_new."""
    if arg not in MODES:
        raise ConfigError(f"{arg}: not one of {', '.join(MODES)}")
    new = arg == "explore_new"
    # A set of the run's own name is shared without repeats; under another name it would be this explorer's own.
    explorer = ExplorerConfig(name="explorer_new", tasksets={"gsm8k": gsm8k()}) if new else ExplorerConfig()
    config = Config(
        mode="explore" if new else arg,
        run_dir=str(Path(os.environ.get("TRINITY_CHECKPOINT_ROOT_DIR", "./checkpoints")) / "async_gsm8k"),
        # sync_offset, 0 there by default: the batches by which the explorer runs ahead of the synchronisation. At 0 the
        # ten batches of an interval are made with the version that begins it, while the trainer trains, and no token is
        # staler than 9 steps; with 1 (sync_offset 1) both are busy all the time, and a token may be 10 steps old.
        async_generation_ratio=0.0,
        fill_interval=True,
        sync_method="checkpoint",
        sync_interval=10,
        group_size=REPEAT_TIMES,
        rollout_batch_size=64 * REPEAT_TIMES,  # batch_size: 64 tasks; train_batch_size: 512 experiences
        total_epochs=1,
        max_steps=7473 // 64,  # so many whole batches are in the epoch
        save_steps=10,
        eval_steps=None,
        model=ModelConfig(
            path=os.environ.get("TRINITY_MODEL_PATH", "Qwen/Qwen2.5-1.5B-Instruct"),
            dtype="bf16",
            remat="full",
            max_prompt_tokens=1024,  # max_model_len 2048, less the response
            max_response_tokens=1024,
        ),
        learner=LearnerConfig(
            devices="auto" if new else "gpu:0-3",  # gpu_per_node
            mesh=MeshConfig(fsdp=4, sequence=1),  # ulysses_sequence_parallel_size
            optimizer=OptimizerConfig(learning_rate=1e-6, weight_decay=0.01, grad_clip=1.0),
            max_tokens_per_row=2048,
            rows_per_microbatch=4 * 8,  # max_token_len_per_gpu 16384 = 8 rows; packed always (use_dynamic_bsz)
        ),
        algorithm=AlgorithmConfig(
            adv_estimator="grpo",  # algorithm_type; what follows are its defaults
            pg_variant="ppo",
            loss={"clip_low": 0.2, "clip_high": 0.2},
            kl=KlConfig(where="loss", estimator="k2", coef=0.001),
        ),
        explorer=explorer,
        sidecar=engines(new),
        tasks=TasksConfig(train={"gsm8k": gsm8k()}),
    )
    return to_config_dict(config)
