"""Keys of ROLL's and Trinity-RFT's in files and overrides of ours: a hint says what the importer would."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.arguments import parse_arguments
from rljax.config.fields import ConfigError
from rljax.config.load import load_config


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("train_env_manager.group_size", "ROLL has it; write group_size"),
        ("rollout.train_env_manager.group_size", "did you mean group_size?"),
        ("algorithm.epsilon", "TRL has it; write algorithm.loss.clip_low, algorithm.loss.clip_high"),
        ("algorithm.epsilon_high", "TRL has it; write algorithm.loss.clip_high"),
        ("algorithm.optimizer.lr", "write learner.optimizer.learning_rate"),
        ("warmup_steps", "did you mean learner.optimizer.warmup_steps?"),
        ("learner.warmup_steps", "did you mean learner.optimizer.warmup_steps?"),
        ("algorithm.warmup_steps", "did you mean learner.optimizer.warmup_steps?"),
        ("algorithm.optimizer.warmup_steps", "did you mean learner.optimizer.warmup_steps?"),
        ("algorithm.optimizer.grad_clip", "did you mean learner.optimizer.grad_clip?"),
        ("algorithm.critic.optimizer.warmup", "did you mean algorithm.critic.optimizer.warmup_steps?"),
        ("value_clip", "did you mean algorithm.critic.value_clip?"),
        ("name", "write run_dir"),
        ("tasks.train.reverse_digits.path", "write tasks.train.NAME.source"),
        ("buffer.explorer_input.taskset.path", "write tasks.train.NAME.source"),
        ("buffer.explorer_input.taskset.format.prompt_key", "write tasks.train.NAME.prompt_key"),
        ("buffer.explorer_input.taskset.split", "write tasks.train.NAME.split"),
        ("template", "leave it out: the model's own chat template is used"),
        ("tensor_model_parallel_size", "write learner.mesh.tensor"),
        (
            "per_device_train_batch_size",
            "TRL has it; write learner.rows_per_microbatch (rows, of all devices together)",
        ),
        ("actor_train.training_args.per_device_train_batch_size", "write learner.rows_per_microbatch"),
        ("infer_batch_size", "leave it out"),
        ("learner.infer_batch_size", "leave it out: log-probabilities are of learner.rows_per_microbatch rows"),
        ("sidecar.infer_batch_size", "leave it out: sidecar.max_concurrency says how many are under way"),
        ("actor_train.training_args.learning_rate", "write learner.optimizer.learning_rate"),
        ("actor_train.x.y", "write learner"),
        ("buffer.foo", "write tasks, rollout_batch_size"),
        ("gradient_accumulation_steps", "write algorithm.minibatch_size"),
        ("strategy_name", "mesh axes take the place of a strategy"),
        ("recompute_granularity", "write model.remat"),
        ("use_distributed_optimizer", "leave it out: parameters, gradients and moments are sharded"),
        ("sequence_parallel", "did you mean learner.sequence_parallel?"),
        ("model.sequence_parallel", "did you mean learner.sequence_parallel?"),
        ("algorithm.grad_clip", "did you mean learner.optimizer.grad_clip?"),
        ("sidecar.tensor_model_parallel_size", "write sidecar.tensor_parallel_size"),
        ("learner.tensor_model_parallel_size", "write learner.mesh.tensor"),
        ("file_name", "write tasks.train.NAME.source"),
        ("num_beams", "leave it out: 1: attempts are sampled; else: there is no beam search"),
        ("mem_fraction_static", "write sidecar.gpu_memory_utilization"),
        ("attn_implementation", "leave it out"),
        ("worker_cls", "leave it out"),
        ("num_gpus_per_worker", "leave it out"),
        ("monitor", "leave it out: the run's own files say it"),
        ("monitor.monitor_type", "leave it out: the run's own files say it"),
        ("reference.model_args.dtype", "ROLL has it; leave it out: the policy that the run began with"),
        ("track_with", "leave it out: TensorBoard's events are written"),
        ("use_turn_scores", "write algorithm.adv_estimator=agentic_reinforce, an advantage of turns"),
        ("use_topr_loss", "write algorithm.pg_variant=topr"),
        ("domain_interleave_probs", "write tasks.train.NAME.weight"),
    ],
)
def test_a_hint_says_what_the_importer_would(key: str, advice: str, write: Any) -> None:
    path, overrides = parse_arguments(["--config=configs/quickstart.py", f"--config.{key}=1"])
    with pytest.raises(ConfigError) as answered:
        load_config(path, overrides)
    assert f"{key}: unknown key; " in str(answered.value)
    assert advice in str(answered.value)
