"""ROLL's keys: what becomes of each. Agentic and RLVR files share the table; see `rljax.config.importers.rule`."""

from __future__ import annotations

from rljax.config.importers import roll_objective as goal
from rljax.config.importers import roll_reward_models as models
from rljax.config.importers import roll_tasks as tasks
from rljax.config.importers import roll_values as made
from rljax.config.importers.roll_devices import node
from rljax.config.importers.roll_environments import TASKS
from rljax.config.importers.roll_workers import WORKERS
from rljax.config.importers.rule import Make, Rule, choice, needless, only, read_by, refused, same, to
from rljax.config.registries import policy_losses

_KL = "algorithm.kl.where algorithm.kl.estimator algorithm.kl.coef"
_NO_TEACHER = "a teacher is not taken over; write algorithm.distill.teachers.NAME.path, alone with adv_estimator=none"
_RATIOS = "w itself is bounded, by algorithm.correction.low and high"
_RECORDED = "ratios are to the log-probabilities recorded with the samples; pg_variant=decoupled_ppo recomputes besides"
_RESUMES = "the same command resumes a run; another run_dir begins a new one"
_OWN = "the run's own files say it: run_dir has metrics, trace, samples and a report"
_VARIABLE = "a variable of the file, read where ${…} names it"
_NO_VALUE = "there is no critic, unless adv_estimator is gae"
_OF_RAY = "engines and workers are started as they are needed"
_ROUTER = "engines take what they have room for; a group is not bound to one"


def _each(paths: str, why: str) -> list[Rule]:
    return [needless(path, why) for path in paths.split()]


def _masked(found: made.Found) -> made.Values | str:
    return {"algorithm.overlong": "mask"} if found.value else "it is off"


def _critic(key: str) -> Make:
    return lambda found: {key: found.value} if found.document.get("adv_estimator") == "gae" else _NO_VALUE


RUN: list[Rule] = [
    to("exp_name", "run_dir", made.run_dir, "output_dir/exp_name"),
    to("output_dir", "run_dir", made.run_dir, "output_dir/exp_name", default="./output"),
    same("seed", "seed", default=42),
    same("pretrain", "model.path"),
    same("async_generation_ratio", "async_generation_ratio", "any number from 0; a bound, not the lag itself", 0),
    to(
        "rollout_batch_size",
        "rollout_batch_size",
        lambda found: {"rollout_batch_size": made.trajectories(found.document)},
        "trajectories; of RLVR, where ROLL counts prompts, times group_size",
        128,
    ),
    to(
        "num_return_sequences_in_group",
        "group_size",
        made.group_size,
        "of RLVR; of agentic files train_env_manager.group_size",
        1,
    ),
    needless("is_num_return_sequences_expand", "each attempt is a request of its own, always"),
    to(
        "val_batch_size",
        "val_batch_size rollout.val_env_manager.num_env_groups",
        tasks.val_batch,
        "of all tags together; RLVR validates on all rows, as there",
        128,
    ),
    same("max_steps", "max_steps", default=500),
    same("save_steps", "save_steps", default=50),
    same("logging_steps", "logging_steps", default=1),
    to("eval_steps", "eval_steps", lambda f: {"eval_steps": f.value or None}, "0 is None", 10),
    to(
        "max_ckpt_to_keep",
        "learner.checkpoints_to_keep",
        lambda found: {"learner.checkpoints_to_keep": found.value or None},
        "0 is None: all. Left out, 2 are kept here",
    ),
    to(
        "prompt_length",
        "model.max_prompt_tokens model.max_response_tokens model.sequence_length",
        made.lengths,
        "of RLVR; agentic files bound the trajectory",
        1024,
    ),
    to("response_length", "model.max_response_tokens", made.lengths),
    to(
        "sequence_length",
        "model.sequence_length model.max_response_tokens model.max_prompt_tokens",
        made.lengths,
        "of a whole trajectory",
    ),
    same("max_running_requests", "sidecar.max_concurrency", "on each engine", 128),
    to(
        "reward_pretrain",
        "reward_models.NAME.path",
        models.pretrained,
        "of a reward worker; the critic begins with the policy's weights",
    ),
    needless("resume_from_checkpoint", _RESUMES),
    needless("checkpoint_config", "checkpoints lie in run_dir", whole=True),
    needless("tracker_kwargs", "run_dir holds what a tracker would", whole=True),
    needless("track_with", "TensorBoard's events are written, metrics.jsonl and a report; there is no other tracker"),
    needless(
        "system_envs", "the shell's environment is the program's; write NAME=VALUE before the command", whole=True
    ),
    needless("hydra", "there is no Hydra", whole=True),
    needless("defaults", "blocks that are published are built in", whole=True),
    to("num_gpus_per_node", "", node, "GPUs of a node: device_mapping is read by it", 8),
    needless("num_nodes", "device_mapping says which nodes there are"),
    needless("rpc_timeout", "wait_timeout and the time limits of rollout"),
    refused("rollout_mock", "leave it out; --config.mode=replay trains the recorded batches again", whole=True),
    only("generate_opt_level", (0, 1), "generation is always asynchronous", "write 1"),
    refused(
        "is_use_additional_prompts",
        "write --config.rollout.train_env_manager.group_size_redundancy, against stragglers",
        "rollout.train_env_manager.group_size_redundancy",
    ),
    *_each("max_additional_running_prompts user_defined_rollout_loop_cls", _ROUTER),
    needless("router_args", _ROUTER, whole=True),
    needless("transfer_backend", "sync_method says how weights travel", whole=True),
    *_each(
        "logging_dir rollout_dump_dir base_dir render_save_dir save_logging_board_dir length_profiler_dir "
        "profiler_output_dir otlp_output_dir report_length_and_rewards profiler_timeline profiler_memory",
        _OWN,
    ),
    *_each(
        "is_offload_states is_offload_optimizer_states_in_train_step partial_gpu_mode",
        "learner and engines keep what they need in place; sidecar.colocate shares a GPU",
    ),
    *_each("model_update_buffer_size_mb", "weights travel a tensor at a time"),
    *_each("local_rank model_download_type exp_mode", _OF_RAY),
    *[
        to(key, "sidecar.val_generating_args.max_new_tokens", made.validated, "of RLVR: what the prompt leaves")
        for key in made.VALIDATED
    ],
    *_each(
        "all_response_pattern "
        "action_pattern think_action_pattern max_tokens_per_step max_actions_per_traj sokoban_format_penalty "
        "frozen_format_penalty env_manager_cls agent_system_template agent_template default_history_length "
        "single_prompt_agent_system_template single_prompt_agent_template",
        _VARIABLE,
    ),
    needless("custom_env", _VARIABLE, whole=True),
    *[needless(f"deepspeed_{name}", _VARIABLE, whole=True) for name in ("zero", "zero2", "zero3", "zero3_cpuoffload")],
]
"""The run, its sizes and files."""

OBJECTIVE: list[Rule] = [
    choice(
        "adv_estimator",
        "algorithm.adv_estimator",
        {name: name for name in ("gae", "reinforce", "grpo", "gigpo", "step_reinforce", "agentic_reinforce")},
        "grpo compares within groups, of agentic files too",
        "gae",
    ),
    same("ppo_epochs", "algorithm.ppo_epochs", default=1),
    same("max_grad_norm", "learner.optimizer.grad_clip", default=1.0),
    same("whiten_advantages", "algorithm.whiten_advantages", default=False),
    same("advantage_clip", "algorithm.advantage_clip"),
    same("reward_clip", "algorithm.reward_clip"),
    to(
        "whiten_rewards",
        "algorithm.whiten_rewards",
        lambda f: {"algorithm.whiten_rewards": f.value} if f.value else "it is off",
    ),
    to("gamma", "algorithm.advantage.gamma", goal.of_estimator("gamma", "gae", "reinforce", "agentic_reinforce")),
    to("lambd", "algorithm.advantage.lambd", goal.of_estimator("lambd", "gae")),
    to("step_reward_gamma", "algorithm.advantage.gamma", goal.of_estimator("gamma", "gigpo", "step_reinforce")),
    to("episode_reward_weight", "algorithm.advantage.episode_weight", goal.of_estimator("episode_weight", "gigpo")),
    to("step_reward_weight", "algorithm.advantage.step_weight", goal.of_estimator("step_weight", "gigpo")),
    to("pg_clip", "algorithm.loss.clip_low algorithm.loss.clip_high", goal.clip, "", 0.2),
    to("pg_clip_low", "algorithm.loss.clip_low", goal.clip, "where use_pg_clip_range", 0.2),
    to("pg_clip_high", "algorithm.loss.clip_high", goal.clip, "where use_pg_clip_range", 0.2),
    to(
        "use_pg_clip_range",
        "algorithm.loss.clip_low algorithm.loss.clip_high",
        lambda f: "pg_clip_low and pg_clip_high are the bounds" if f.value else "pg_clip is both bounds",
    ),
    to("dual_clip_loss", "algorithm.loss.dual_clip", goal.clip, "the bound itself: 1 + 2 pg_clip"),
    *[
        read_by(
            choice(key, "algorithm.loss.ratio_level", levels, "with pg_variant=ppo"),
            (policy_losses,),
            goal.loss_name,
        )
        for key, levels in (
            ("importance_sampling", {"token": "token", "seq": "sequence"}),
            ("ratio_type", {"token": "token", "segment": "turn"}),
        )
    ],
    to("use_kl_loss", _KL, goal.kl, "where=loss; k3, clamped"),
    to("kl_loss_coef", "algorithm.kl.coef", goal.kl, "with where=loss"),
    to("add_token_level_kl", _KL, goal.kl, "where=reward"),
    to("init_kl_coef", "algorithm.kl.coef", goal.kl, "with where=reward"),
    to("kl_penalty", "algorithm.kl.estimator", goal.kl, "kl is k1, mse is k2; abs and full are not there"),
    to("target_kl", "algorithm.kl.target", goal.kl, "None is fixed"),
    to("kl_horizon", "algorithm.kl.horizon", goal.kl, "with target_kl"),
    needless("enable_reference", "a reference is kept where algorithm.kl.where or the loss asks for it"),
    same("entropy_loss_coef", "algorithm.entropy_coef"),
    choice(
        "loss_agg_mode",
        "algorithm.aggregation",
        {n: n for n in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")},
        "",
        "seq-mean-token-mean",
    ),
    to("max_len_mask", "algorithm.overlong", _masked, "mask"),
    to(
        "error_max_len_clip",
        "algorithm.overlong",
        _masked,
        "mask; the limit is model.max_response_tokens",
    ),
    needless("error_max_len_threshold", "the limit is model.max_response_tokens"),
    to(
        "difficulty_mask",
        "algorithm.filters algorithm.filter.mean_band.low algorithm.filter.mean_band.high",
        lambda f: (
            {
                "algorithm.filters": ("mean_band",),
                "algorithm.filter.mean_band.low": f.document.get("difficulty_low_threshold", 0.0),
                "algorithm.filter.mean_band.high": f.document.get("difficulty_high_threshold", 1.0),
            }
            if f.value
            else "it is off"
        ),
        "mean_band; what it drops is replaced, not masked",
    ),
    Rule("difficulty_low_threshold", ("algorithm.filter.mean_band.low",), make=lambda f: _threshold(f, "low")),
    Rule("difficulty_high_threshold", ("algorithm.filter.mean_band.high",), make=lambda f: _threshold(f, "high")),
    same("difficulty_loss_weight", "algorithm.difficulty_loss_weight"),
    same("length_loss_weight", "algorithm.length_loss_weight"),
    to("norm_mean_type", "algorithm.norm_mean", goal.of_rewards("norm_mean"), "grpo compares by itself"),
    to("norm_std_type", "algorithm.norm_std", goal.of_rewards("norm_std"), "grpo compares by itself"),
    to("value_clip", "algorithm.critic.value_clip", _critic("algorithm.critic.value_clip"), "with gae"),
    to("critic_warmup", "algorithm.critic.warmup_steps", _critic("algorithm.critic.warmup_steps"), "with gae"),
    needless("enable_old_logprobs_recompute", _RECORDED),
    needless("force_disable_old_logprobs_recompute", _RECORDED),
    only(
        "rl_loss_coef",
        (1, 1.0),
        "the policy loss has weight 1",
        "scale algorithm.kl.coef and entropy_coef instead",
        "algorithm.kl.coef",
    ),
    same("l2", "learner.optimizer.weight_decay"),
    refused("use_reward_scaling", "write algorithm.norm_std=batch", "algorithm.norm_std"),
    refused("use_reward_norm", "write algorithm.norm_mean=batch and algorithm.norm_std=batch", "algorithm.norm_mean"),
    refused("add_len_reward", "write algorithm.overlong=penalty", "algorithm.overlong"),
    to("pg_variant", "algorithm.pg_variant", lambda _: "ROLL reads it below actor_train", "that below actor_train"),
    refused("use_topr_loss", "write algorithm.pg_variant=topr", "algorithm.pg_variant"),
    refused("postive_loss_coef", "write algorithm.loss.positive_weight, with pg_variant=topr", "algorithm.pg_variant"),
    refused(
        "use_topr_neg_loss_coef", "write algorithm.loss.negative_weight, with pg_variant=topr", "algorithm.pg_variant"
    ),
    only(
        "use_policy_loss_type",
        ("PPO",),
        "ppo is the default",
        "write algorithm.pg_variant=vanilla",
        "algorithm.pg_variant",
    ),
    *[
        refused(path, _NO_TEACHER, whole=True)
        for path in ("teacher", "student_train", "student_infer", "is_pure_opd", "use_opd")
    ],
    needless("pure_opd_pipeline_type", "algorithm.distill has one way"),
    refused(
        "use_turn_scores",
        "write algorithm.adv_estimator=agentic_reinforce, an advantage of turns",
        "algorithm.adv_estimator",
    ),
    *_each("batch_adjust_mode", "batches are always whole"),
    *_each(
        "mask_type minibatch_data_iter_num balance_length val_greedy val_n_sample dirty_data_mask use_token_reward "
        "reward_normalization.global_scale_factor reward_normalization.global_shift_value",
        "nothing of ROLL reads it",
    ),
    to(
        "reward_normalization.grouping",
        "algorithm.norm_mean algorithm.norm_std algorithm.advantage.grouping",
        goal.normalization,
        "traj_group_id is group, tags is tag; grpo compares within groups by itself",
    ),
    to("reward_normalization.method", "algorithm.norm_mean algorithm.norm_std", goal.normalization),
    to("reward_normalization.norm_mean_type", "algorithm.norm_mean", goal.normalization),
    to("reward_normalization.norm_std_type", "algorithm.norm_std", goal.normalization),
    to(
        "train_infer_correction.is_weight.enabled",
        "algorithm.correction.level algorithm.correction.mode algorithm.correction.high",
        goal.correction,
        "mode=truncate",
    ),
    to(
        "train_infer_correction.is_weight.weight_type",
        "algorithm.correction.level",
        goal.correction,
        "segment is turn",
    ),
    to("train_infer_correction.is_weight.upper_bound", "algorithm.correction.high", goal.correction),
    needless("train_infer_correction.is_weight.detach", "weights are always constants"),
    to(
        "train_infer_correction.filters",
        "algorithm.correction.level algorithm.correction.mode algorithm.correction.low algorithm.correction.high",
        goal.correction,
        f"mode=mask, one of them; {_RATIOS}",
        whole=True,
    ),
]
"""The objective."""


def _threshold(found: made.Found, side: str) -> made.Values | str:
    if not found.document.get("difficulty_mask"):
        return "difficulty_mask is off"
    return {f"algorithm.filter.mean_band.{side}": found.value}


RULES: tuple[Rule, ...] = (*RUN, *OBJECTIVE, *WORKERS, *TASKS)
