"""What keys of ROLL and Trinity-RFT are called here, for whoever writes one of them out of habit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ancestor:
    """A key of another program.

    Attributes:
        whose: the program.
        here: keys, or groups of keys, that say the same; none where nothing has to be said.
        remark: what differs.
    """

    whose: str
    here: tuple[str, ...]
    remark: str = ""

    def advice(self) -> str:
        """What to write instead."""
        remark = f" ({self.remark})" if self.here and self.remark else self.remark
        return f"{self.whose} has it; {'write ' + ', '.join(self.here) if self.here else 'leave it out: '}{remark}"


def _trinity(*here: str, remark: str = "") -> Ancestor:
    return Ancestor("Trinity-RFT", here, remark)


def _roll(*here: str, remark: str = "") -> Ancestor:
    return Ancestor("ROLL", here, remark)


_PLACES = ("learner.devices", "sidecar.devices")
_RESUMES = "the same command resumes a run; another run_dir begins a new one"

ANCESTORS = {
    # Trinity-RFT: run and algorithm
    "project": _trinity("run_dir"),
    "checkpoint_root_dir": _trinity("run_dir"),
    "continue_from_checkpoint": _trinity(remark=_RESUMES),
    "algorithm_type": _trinity("algorithm.adv_estimator", "algorithm.pg_variant"),
    "policy_loss_fn": _trinity("algorithm.pg_variant"),
    "repeat_times": _trinity("group_size"),
    "lr": _trinity("learner.optimizer.learning_rate"),
    "clip_grad": _trinity("learner.optimizer.grad_clip"),
    "model_path": _trinity("model.path"),
    "max_model_len": _trinity("model.max_prompt_tokens", "model.max_response_tokens", remark="their sum"),
    # Trinity-RFT: where things run
    "cluster": _trinity(*_PLACES),
    "node_num": _trinity(*_PLACES),
    "gpu_per_node": _trinity(*_PLACES),
    # Trinity-RFT: tasks and batches
    "buffer": _trinity("tasks", "rollout_batch_size", "total_epochs"),
    "batch_size": _trinity("rollout_batch_size", remark="in trajectories: tasks of a step times group_size"),
    "train_batch_size": _trinity("rollout_batch_size", remark="in trajectories, as there"),
    "total_steps": _trinity("max_steps"),
    "explorer_input": _trinity("tasks"),
    "taskset": _trinity("tasks.train", remark="or explorer.tasksets, for one explorer alone"),
    "eval_tasksets": _trinity("tasks.validation"),
    "subset_name": _trinity("tasks.train.NAME.subset"),
    "response_key": _trinity("tasks.train.NAME.answer_key"),
    "default_workflow_type": _trinity("tasks.train.NAME.rewards"),
    "default_reward_fn_type": _trinity("tasks.train.NAME.rewards"),
    "rollout_args": _trinity("sidecar.generating_args"),
    "storage_type": _trinity(remark="a taskset's source says it, and experiences lie in the run's ledger"),
    "trainer_input": _trinity(remark="experiences lie in the run's ledger"),
    "experience_buffer": _trinity(remark="experiences lie in the run's ledger"),
    # Trinity-RFT: explorer, synchronizer, trainer
    "rollout_model": _trinity("sidecar"),
    "engine_num": _trinity("sidecar.num_engines"),
    "runner_per_model": _trinity(
        "sidecar.max_concurrency", remark="attempts, not tasks, under way on each engine: runners times group_size"
    ),
    "max_timeout": _trinity("rollout.trajectory_timeout"),
    "max_retry_times": _trinity("rollout.max_retries"),
    "eval_interval": _trinity("eval_steps"),
    "synchronizer": _trinity("sync_method", "sync_interval", "async_generation_ratio"),
    "sync_offset": _trinity("async_generation_ratio", remark="how many batches the explorers are ahead"),
    "sync_style": _trinity(
        "async_generation_ratio",
        "max_staleness",
        remark="fixed is 0 with the offset added; engines never drain, and no style leaves staleness unbounded",
    ),
    "sync_timeout": _trinity("wait_timeout"),
    "trainer": _trinity("learner"),
    "save_interval": _trinity("save_steps"),
    "max_checkpoints_to_keep": _trinity("learner.checkpoints_to_keep"),
    "use_dynamic_bsz": _trinity(remark="rows are always packed; learner.max_tokens_per_row is their length"),
    "max_token_len_per_gpu": _trinity(
        "learner.max_tokens_per_row", "learner.rows_per_microbatch", remark="their product, on each device"
    ),
    "ulysses_sequence_parallel_size": _trinity("learner.mesh.sequence"),
    # ROLL
    "exp_name": _roll("run_dir"),
    "output_dir": _roll("run_dir"),
    "resume_from_checkpoint": _roll(remark=_RESUMES),
    "max_ckpt_to_keep": _roll("learner.checkpoints_to_keep"),
    "num_gpus_per_node": _roll(*_PLACES),
    "device_mapping": _roll(*_PLACES),
    "num_return_sequences_in_group": _roll("group_size"),
    "pretrain": _roll("model.path"),
    "prompt_length": _roll("model.max_prompt_tokens"),
    "response_length": _roll("model.max_response_tokens"),
    "actor_train": _roll("learner"),
    "actor_infer": _roll("sidecar"),
    "max_running_requests": _roll("sidecar.max_concurrency"),
    "max_grad_norm": _roll("learner.optimizer.grad_clip"),
    "pg_clip": _roll("algorithm.clip_low", "algorithm.clip_high"),
    "pg_clip_low": _roll("algorithm.clip_low"),
    "pg_clip_high": _roll("algorithm.clip_high"),
    "dual_clip_loss": _roll("algorithm.dual_clip", remark="the bound itself; None is off"),
    "importance_sampling": _roll("algorithm.ratio_level", remark="seq is sequence; or pg_variant=gspo"),
    "ratio_type": _roll("algorithm.ratio_level", remark="segment is turn"),
    "tis_lower_bound": _roll("algorithm.tis_low"),
    "tis_upper_bound": _roll("algorithm.tis_high"),
    "train_infer_correction": _roll("algorithm.correction", remark="segment is turn"),
    "entropy_loss_coef": _roll("algorithm.entropy_coef"),
    "loss_agg_mode": _roll("algorithm.aggregation"),
    "reward_normalization": _roll("algorithm.reward_grouping", remark="grpo compares within groups by itself"),
    "norm_mean_type": _roll("algorithm.norm_mean"),
    "norm_std_type": _roll("algorithm.norm_std"),
    "max_len_mask": _roll("algorithm.overlong", remark="mask"),
    "difficulty_mask": _roll("algorithm.filters", remark="mean_band; what it drops is replaced, not masked"),
    "difficulty_low_threshold": _roll("algorithm.filter_mean_low"),
    "difficulty_high_threshold": _roll("algorithm.filter_mean_high"),
    "query_filter_config": _roll("algorithm.filters", remark="mean_band and min_std"),
    # ROLL: environments
    "env_type": _roll("custom_envs.NAME.id"),
    "env_config": _roll("custom_envs.NAME.kwargs"),
    "env_manager_cls": _roll("custom_envs.NAME.history_length", remark="set: a row for each turn; None: one dialogue"),
    "agent_system_template": _roll("custom_envs.NAME.system_prompt"),
    "agent_template": _roll("custom_envs.NAME.template"),
    "max_actions_per_traj": _roll("custom_envs.NAME.max_actions"),
    "max_tokens_per_step": _roll("custom_envs.NAME.max_tokens_per_turn"),
    "env_monitor": _roll("rollout.env_timeout", remark="an environment that hangs is replaced"),
}
"""By the last part of the key's path."""
