"""Foreign keys: maps keys of ROLL and Trinity-RFT, and the clips of others, to the keys here, for error messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class ForeignKey:
    """A key of another program.

    Attributes:
        whose: name of the program.
        here: keys, or groups of keys, that say the same; none where nothing has to be said.
        remark: what differs.
    """

    whose: str
    here: tuple[str, ...]
    remark: str = ""

    def advice(self, prefix: str, keys: Collection[str]) -> str:
        """Returns what to write instead.

        Args:
            prefix: where the key was written, with a dot behind; empty at the top.
            keys: paths of all that there are.
        """
        remark = f" ({self.remark})" if self.here and self.remark else self.remark
        here = ", ".join(_within(prefix, key, keys) for key in self.here)
        return f"{self.whose} has it; {f'write {here}' if here else 'leave it out: '}{remark}"


def _within(prefix: str, key: str, keys: Collection[str]) -> str:
    """Returns the key of the optimizer in the group that was written to, where that has one: a critic has its own."""
    optimizer, _, name = key.rpartition(".")
    if optimizer != "learner.optimizer":
        return key
    return next((path for path in (f"{prefix}{name}", f"{prefix}optimizer.{name}") if prefix and path in keys), key)


def _trinity(*here: str, remark: str = "") -> ForeignKey:
    return ForeignKey("Trinity-RFT", here, remark)


def _clip(whose: str, *sides: str) -> ForeignKey:
    return ForeignKey(whose, tuple(f"algorithm.loss.clip_{side}" for side in sides or ("low", "high")))


def _roll(*here: str, remark: str = "") -> ForeignKey:
    return ForeignKey("ROLL", here, remark)


_PLACES = ("learner.devices", "sidecar.devices")
_RESUMES = "the same command resumes a run; another run_dir begins a new one"
_RECORDED = "ratios are to the log-probabilities recorded with the samples; pg_variant=decoupled_ppo recomputes besides"
_NO_TEACHER = "there is no distillation"
_CONSTANTS = "weights are always constants"
_RATIOS_ALONE = "w itself is bounded, by algorithm.correction.low and high"


def _loss(here: str, *losses: str) -> ForeignKey:
    return ForeignKey("an earlier rljax", (f"algorithm.loss.{here}",), f"with pg_variant={' or '.join(losses)}")


def _advantage(here: str, *estimators: str) -> ForeignKey:
    return ForeignKey(
        "an earlier rljax", (f"algorithm.advantage.{here}",), f"with adv_estimator={' or '.join(estimators)}"
    )


def _filter(name: str, here: str) -> ForeignKey:
    return ForeignKey("an earlier rljax", (f"algorithm.filter.{name}.{here}",))


_CLIPPED = ("ppo", "dapo", "decoupled_ppo")

MOVED = {
    "ratio_level": _loss("ratio_level", "ppo", "dapo"),
    "clip_low": _loss("clip_low", *_CLIPPED),
    "clip_high": _loss("clip_high", "ppo", "decoupled_ppo"),
    "dual_clip": _loss("dual_clip", *_CLIPPED, "gspo"),
    "dapo_clip_high": _loss("clip_high", "dapo"),
    "gspo_clip_low": _loss("clip_low", "gspo"),
    "gspo_clip_high": _loss("clip_high", "gspo"),
    "proximal_policy": _loss("proximal_policy", "decoupled_ppo"),
    "proximal_interpolation": _loss("proximal_interpolation", "decoupled_ppo"),
    "behaviour_weight_cap": _loss("behaviour_weight_cap", "decoupled_ppo"),
    "tis_low": _loss("low", "tis"),
    "tis_high": _loss("high", "tis"),
    "cispo_epsilon_low": _loss("clip_low", "cispo"),
    "cispo_epsilon_high": _loss("clip_high", "cispo"),
    "cispo_use_unified_mask": _loss("use_unified_mask", "cispo"),
    "topr_positive_weight": _loss("positive_weight", "topr"),
    "topr_negative_weight": _loss("negative_weight", "topr"),
    "kimi15_tau": _loss("tau", "kimi15"),
    "opmd_tau": ForeignKey(
        "an earlier rljax",
        ("algorithm.loss.tau", "algorithm.advantage.tau"),
        "with pg_variant=opmd, opmd_kimi or opmd_pairwise, with adv_estimator=opmd_logavgexp",
    ),
    "asymre_shift": _loss("shift", "asymre"),
    "sapo_tau_positive": _loss("tau_positive", "sapo"),
    "sapo_tau_negative": _loss("tau_negative", "sapo"),
    "sppo_epsilon": _loss("epsilon", "sppo"),
    "rec_clip": _loss("clip", "rec"),
    "rec_clip_low": _loss("clip_low", "rec"),
    "rec_clip_high": _loss("clip_high", "rec"),
    "rec_ring_low": _loss("ring_low", "rec"),
    "rec_ring_high": _loss("ring_high", "rec"),
    "rec_weight": _loss("weight", "rec"),
    "rec_temperature": _loss("temperature", "rec"),
    "rec_regularizer": _loss("regularizer", "rec"),
    "rec_regularizer_coef": _loss("regularizer_coef", "rec"),
    "mix_variant": _loss("variant", "mix"),
    "sft_phi": _loss("phi", "sft", "mix"),
    "sft_weight": _loss("weight", "mix"),
    "sft_schedule": _loss("schedule", "mix"),
    "sft_weight_peak": _loss("weight_peak", "mix"),
    "sft_weight_valley": _loss("weight_valley", "mix"),
    "sft_warmup_updates": _loss("warmup_updates", "mix"),
    "sft_decay_updates": _loss("decay_updates", "mix"),
    "gamma": _advantage("gamma", "agentic_reinforce", "reinforce", "reinforce++", "gae"),
    "lambd": _advantage("lambd", "gae"),
    "step_reward_gamma": _advantage("gamma", "step_reinforce", "gigpo"),
    "episode_reward_weight": _advantage("episode_weight", "gigpo"),
    "step_reward_weight": _advantage("step_weight", "gigpo"),
    "reward_grouping": _advantage("grouping", "gigpo", "step_reinforce"),
    "filter_mean_low": _filter("mean_band", "low"),
    "filter_mean_high": _filter("mean_band", "high"),
    "filter_min_std": _filter("min_std", "bound"),
}
"""Former keys of ``algorithm``, from before each function had keys of its own."""

FOREIGN_KEYS = MOVED | {
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
    # Trinity-RFT: the objective
    "advantage_fn": _trinity("algorithm.adv_estimator"),
    "kl_penalty_fn": _trinity("algorithm.kl.estimator", "algorithm.kl.where", remark="where=reward"),
    "kl_loss_fn": _trinity("algorithm.kl.estimator", "algorithm.kl.where", remark="where=loss; low_var_kl: k3_clamped"),
    "entropy_loss_fn": _trinity("algorithm.entropy_coef", remark="0 is none"),
    "advantage_fn_args": _trinity("algorithm.advantage"),
    "policy_loss_fn_args": _trinity("algorithm.loss"),
    "kl_penalty_fn_args": _trinity("algorithm.kl"),
    "kl_loss_fn_args": _trinity("algorithm.kl"),
    "entropy_loss_fn_args": _trinity("algorithm.entropy_coef"),
    "kl_coef": _trinity("algorithm.kl.coef"),
    "adaptive": _trinity("algorithm.kl.target", remark="None is fixed"),
    "clip_range": _trinity("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    "clip_range_low": _trinity("algorithm.loss.clip_low"),
    "clip_range_high": _trinity("algorithm.loss.clip_high"),
    "baseline_shift": _trinity("algorithm.loss.shift", remark="with pg_variant=asymre"),
    "rollout_correction": _trinity("algorithm.correction"),
    "bypass_old_logprobs": _trinity(remark=_RECORDED),
    "sample_strategy": _trinity(
        "algorithm.drop_staler_than", "algorithm.expert_data_ratio", remark="staleness_control, and mix"
    ),
    "sample_strategy_args": _trinity("algorithm.drop_staler_than", "algorithm.expert_data_ratio"),
    "expert_data_ratio": _trinity("algorithm.expert_data_ratio", "tasks.expert.source"),
    "auxiliary_buffers": _trinity("tasks.expert", remark="demonstrations; its answer_key names the response"),
    "replay_buffer": _trinity("algorithm.max_uses", "algorithm.reuse_ratio", remark="within the staleness bound"),
    "use_count_limit": _trinity("algorithm.max_uses"),
    "reuse_cooldown_time": _trinity("algorithm.max_uses", remark="1 is no reuse; there is no cooldown"),
    "critic_model_path": _trinity(remark="the critic begins with the policy's weights"),
    "lr_warmup_steps": _trinity("learner.optimizer.warmup_steps"),
    "betas": _trinity("learner.optimizer.beta1", "learner.optimizer.beta2"),
    # Trinity-RFT: where things run
    "cluster": _trinity(*_PLACES),
    "node_num": _trinity(*_PLACES),
    "gpu_per_node": _trinity(*_PLACES),
    # Trinity-RFT: tasks and batches
    "buffer": _trinity("tasks", "rollout_batch_size", "total_epochs"),
    "batch_size": _trinity("rollout_batch_size", remark="in trajectories: tasks of a step times group_size"),
    "train_batch_size": _trinity(
        "rollout_batch_size", remark="in trajectories, as there; verl's, in prompts, times group_size"
    ),
    "total_steps": _trinity("max_steps"),
    "explorer_input": _trinity("tasks"),
    "taskset": _trinity("tasks.train", remark="or explorer.tasksets, for one explorer alone"),
    "eval_tasksets": _trinity("tasks.validation"),
    "subset_name": _trinity("tasks.train.NAME.subset"),
    "response_key": _trinity("tasks.train.NAME.answer_key"),
    "default_workflow_type": _trinity("tasks.train.NAME.rewards"),
    "default_reward_fn_type": _trinity("tasks.train.NAME.rewards"),
    "reward_fn_args": _trinity("tasks.train.NAME.reward_args", remark="by the name of the function"),
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
    "tensor_model_parallel_size": _roll("learner.mesh.tensor", remark="of an engine: sidecar.tensor_parallel_size"),
    "context_parallel_size": _roll("learner.mesh.sequence"),
    "max_grad_norm": _roll("learner.optimizer.grad_clip"),
    "pg_clip": _roll("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    "pg_clip_low": _roll("algorithm.loss.clip_low"),
    "pg_clip_high": _roll("algorithm.loss.clip_high"),
    "dual_clip_loss": _roll("algorithm.loss.dual_clip", remark="the bound itself; None is off"),
    "importance_sampling": _roll("algorithm.loss.ratio_level", remark="seq is sequence; or pg_variant=gspo"),
    "ratio_type": _roll("algorithm.loss.ratio_level", remark="segment is turn"),
    "tis_lower_bound": _roll("algorithm.loss.low", remark="with pg_variant=tis"),
    "tis_upper_bound": _roll("algorithm.loss.high", remark="with pg_variant=tis"),
    "train_infer_correction": _roll("algorithm.correction", remark="segment is turn"),
    "entropy_loss_coef": _roll("algorithm.entropy_coef"),
    "loss_agg_mode": _roll("algorithm.aggregation"),
    "reward_normalization": _roll(
        "algorithm.advantage.grouping", remark="of gigpo and step_reinforce; grpo compares within groups by itself"
    ),
    "norm_mean_type": _roll("algorithm.norm_mean"),
    "norm_std_type": _roll("algorithm.norm_std"),
    "max_len_mask": _roll("algorithm.overlong", remark="mask"),
    "difficulty_mask": _roll("algorithm.filters", remark="mean_band; what it drops is replaced, not masked"),
    "difficulty_low_threshold": _roll("algorithm.filter.mean_band.low"),
    "difficulty_high_threshold": _roll("algorithm.filter.mean_band.high"),
    "query_filter_config": _roll("algorithm.filters", remark="mean_band and min_std"),
    "use_pg_clip_range": _roll(
        "algorithm.loss.clip_low", "algorithm.loss.clip_high", remark="both bounds are always there"
    ),
    "use_reward_norm": _roll("algorithm.norm_mean", "algorithm.norm_std"),
    "use_reward_scaling": _roll("algorithm.norm_std"),
    "add_len_reward": _roll("algorithm.overlong", remark="penalty"),
    "error_max_len_clip": _roll("algorithm.overlong", remark="mask; the limit is model.max_response_tokens"),
    "error_max_len_threshold": _roll("algorithm.overlong", remark="mask; the limit is model.max_response_tokens"),
    "use_policy_loss_type": _roll("algorithm.pg_variant", remark="PG is vanilla"),
    "use_topr_loss": _roll("algorithm.pg_variant", remark="topr"),
    "postive_loss_coef": _roll("algorithm.loss.positive_weight", remark="with pg_variant=topr"),
    "use_topr_neg_loss_coef": _roll("algorithm.loss.negative_weight", remark="with pg_variant=topr"),
    "rl_loss_coef": _roll("algorithm.kl.coef", "algorithm.entropy_coef", remark="the policy loss has weight 1"),
    "l2": _roll("learner.optimizer.weight_decay"),
    "lr_scheduler_type": _roll("learner.optimizer.schedule"),
    "warmup_ratio": _roll("learner.optimizer.warmup_steps", remark="in optimizer updates"),
    "adam_beta1": _roll("learner.optimizer.beta1"),
    "adam_beta2": _roll("learner.optimizer.beta2"),
    # ROLL: reference, critic, teacher, reward model
    "reference": _roll("algorithm.kl", remark="the reference is the policy that the run began with"),
    "enable_reference": _roll(remark="a reference is kept where algorithm.kl.where or the loss asks for it"),
    "use_kl_loss": _roll("algorithm.kl.where", remark="loss"),
    "kl_loss_coef": _roll("algorithm.kl.coef", remark="with where=loss"),
    "add_token_level_kl": _roll("algorithm.kl.where", remark="reward"),
    "init_kl_coef": _roll("algorithm.kl.coef", remark="with where=reward"),
    "kl_penalty": _roll("algorithm.kl.estimator", remark="kl is k1, mse is k2; abs and full are not there"),
    "target_kl": _roll("algorithm.kl.target", remark="None is fixed"),
    "kl_horizon": _roll("algorithm.kl.horizon"),
    "critic": _roll("algorithm.critic"),
    "critic_warmup": _roll("algorithm.critic.warmup_steps"),
    "value_clip": _roll("algorithm.critic.value_clip"),
    "enable_old_logprobs_recompute": _roll(remark=_RECORDED),
    "force_disable_old_logprobs_recompute": _roll(remark=_RECORDED),
    "reward": _roll("tasks.train.NAME.rewards", remark="functions, not workers"),
    "reward_pretrain": _roll("tasks.train.NAME.rewards", remark="functions; there is no reward model"),
    "teacher": _roll(remark=_NO_TEACHER),
    "student_train": _roll(remark=_NO_TEACHER),
    "student_infer": _roll(remark=_NO_TEACHER),
    "is_pure_opd": _roll(remark=_NO_TEACHER),
    "use_opd": _roll(remark=_NO_TEACHER),
    "opd_kl_coef": _roll(remark=_NO_TEACHER),
    "pure_opd_pipeline_type": _roll(remark=_NO_TEACHER),
    # ROLL: train_infer_correction
    "is_weight": _roll("algorithm.correction.mode", remark="truncate"),
    "weight_type": _roll("algorithm.correction.level", remark="segment is turn"),
    "upper_bound": _roll("algorithm.correction.high"),
    "detach": _roll(remark=_CONSTANTS),
    "agg_type": _roll("algorithm.correction.level", remark="segment is turn"),
    "ratio_enabled": _roll("algorithm.correction.mode", remark="mask"),
    "ratio_low": _roll("algorithm.correction.low"),
    "ratio_high": _roll("algorithm.correction.high"),
    "diff_enabled": _roll(remark=_RATIOS_ALONE),
    "diff_low": _roll(remark=_RATIOS_ALONE),
    "diff_high": _roll(remark=_RATIOS_ALONE),
    # ROLL: environments
    "env_type": _roll("custom_envs.NAME.id"),
    "env_config": _roll("custom_envs.NAME.kwargs"),
    "env_manager_cls": _roll("custom_envs.NAME.history_length", remark="set: a row for each turn; None: one dialogue"),
    "agent_system_template": _roll("custom_envs.NAME.system_prompt"),
    "agent_template": _roll("custom_envs.NAME.template"),
    "max_actions_per_traj": _roll("custom_envs.NAME.max_actions"),
    "max_tokens_per_step": _roll("custom_envs.NAME.max_tokens_per_turn"),
    "env_monitor": _roll("rollout.env_timeout", remark="an environment that hangs is replaced"),
    # the clip, which each program calls by a name of its own
    "eps_clip": _clip("OpenRLHF"),
    "eps_clip_low_high": _clip("OpenRLHF"),
    "eps_clip_high": _clip("slime", "high"),
    "accumulate_allreduce_grads_in_fp32": ForeignKey("Megatron", ("learner.reduce_dtype",), "fp32"),
    "grad_reduce_in_fp32": ForeignKey("Megatron", ("learner.reduce_dtype",), "fp32"),
    "exp_avg_dtype": ForeignKey("Megatron", ("learner.optimizer.mu_dtype",)),
    "exp_avg_sq_dtype": ForeignKey("Megatron", ("learner.optimizer.nu_dtype",)),
    "loss_mode": ForeignKey("verl", ("algorithm.pg_variant",)),
    "staleness_threshold": ForeignKey("verl", ("async_generation_ratio",), "batches ahead, not a share"),
    "trigger_parameter_sync_step": ForeignKey("verl", ("sync_interval",)),
    "partial_rollout": ForeignKey("verl", ("sidecar.update_policy",), "in_flight"),
    "rollouter": ForeignKey("verl", ("explorer",)),
    "loss_type": ForeignKey("TRL", ("algorithm.pg_variant", "algorithm.aggregation"), "its two parts"),
    "num_generations": ForeignKey("TRL", ("group_size",)),
    "num_iterations": ForeignKey("TRL", ("algorithm.ppo_epochs",)),
    "weight_sync_steps": ForeignKey("TRL", ("sync_interval",)),
    "per_device_train_batch_size": ForeignKey("TRL", ("rollout_batch_size",), "trajectories of all devices"),
    "clip_ratio": _clip("verl"),
    "clip_ratio_low": _clip("verl", "low"),
    "clip_ratio_high": _clip("verl", "high"),
    "cliprange": _clip("TRL"),
    "cliprange_low": _clip("verl", "low"),
    "cliprange_high": _clip("verl", "high"),
    "epsilon_high": _clip("TRL", "high"),
    "clip_epsilon": _clip("TorchRL"),
}
"""Foreign keys by the last part of their path."""
