"""Keys of TRL and verl, and what is written here: hints (`rljax.config.foreign_keys`) and pages read these tables.

python -m rljax.config.habits TRL    # prints the table of docs/from_trl.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rljax.config.importers.rule import Answer


@dataclass(frozen=True)
class Habit:
    """A row of a table.

    Attributes:
        theirs: their keys; ``=VALUE`` behind one says of which value the row speaks, and not the row without.
        here: ours, which correspond to theirs one by one where they are as many; none where nothing has to be said.
        remark: what differs, in Markdown.
    """

    theirs: tuple[str, ...]
    here: tuple[str, ...]
    remark: str

    def answers(self) -> Iterator[Answer]:
        """Yields what is said of each of their keys."""
        remark = re.sub(r"`|\[|\]\(.*?\)", "", self.remark)
        paired = len(self.theirs) == len(self.here)
        for index, theirs in enumerate(self.theirs):
            key, _, value = theirs.partition("=")
            yield Answer(key, (self.here[index],) if paired else self.here, remark, value=value)


def _row(theirs: str, here: str, remark: str = "") -> Habit:
    return Habit(tuple(theirs.split()), tuple(here.split()), remark)


_MANY_TURNS = "[environments](your_environment.md), or a [workflow](workflows.md)"

TRL: tuple[Habit, ...] = (
    _row("model", "model.path"),
    _row("reward_funcs", "tasks.train.NAME.rewards", "`module:function`"),
    _row("reward_weights", "tasks.train.NAME.reward_weights"),
    _row(
        "train_dataset eval_dataset",
        "tasks.train.NAME.source tasks.validation.NAME.source",
        "`hub:ID`, a file, or a directory of `save_to_disk`",
    ),
    _row("shuffle_dataset", "tasks.train.NAME.shuffle"),
    _row("remove_unused_columns", "", "all columns reach the rewards, in `task.metadata`"),
    _row("dataloader_drop_last dataloader_pin_memory dataset_num_proc", "", "rows are read by the run itself"),
    _row("processing_class", "", "the tokenizer is that of `model.path`"),
    _row("tools max_tool_calling_iterations", "rollout.train_env_manager.tags", _MANY_TURNS),
    _row("num_generations", "group_size"),
    _row("per_device_eval_batch_size", "val_batch_size", "tasks of each taskset, of all devices together"),
    _row("num_generations_eval", "", "a validation takes one answer, the greedy one"),
    _row("max_prompt_length", "model.max_prompt_tokens", "a longer prompt is a bad row, and not cut"),
    _row("max_completion_length", "model.max_response_tokens"),
    _row("generation_batch_size", "rollout_batch_size"),
    _row("per_device_train_batch_size", "learner.rows_per_microbatch", "rows, of all devices together"),
    _row(
        "gradient_accumulation_steps steps_per_generation",
        "algorithm.minibatch_size",
        "attempts of one update; what is computed at once follows from the rows",
    ),
    _row("num_iterations", "algorithm.ppo_epochs"),
    _row("beta", "algorithm.kl.coef", "with `algorithm.kl.where=loss`"),
    _row(
        "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha",
        "algorithm.kl.refresh_steps",
        "the reference becomes the policy whole: there is no mixing",
    ),
    _row("epsilon", "algorithm.loss.clip_low algorithm.loss.clip_high", "set both: each has its own default"),
    _row("epsilon_high", "algorithm.loss.clip_high"),
    _row("delta", "algorithm.loss.dual_clip"),
    _row(
        "importance_sampling_level",
        "algorithm.loss.ratio_level",
        "or `algorithm.pg_variant=gspo`, with the clip of its paper",
    ),
    _row("loss_type", "algorithm.pg_variant algorithm.aggregation", "its two parts"),
    _row("scale_rewards", "algorithm.adv_estimator", '`"group"` is `grpo`, `"none"` is `dr_grpo`'),
    _row("mask_truncated_completions", "algorithm.overlong=mask"),
    _row("mask_truncated_completions=False", "algorithm.overlong=keep", "the default"),
    _row("top_entropy_quantile", "", "there is no such mask"),
    _row(
        "temperature top_p top_k",
        "sidecar.generating_args.temperature sidecar.generating_args.top_p sidecar.generating_args.top_k",
    ),
    _row(
        "min_p repetition_penalty",
        "sidecar.val_generating_args.min_p sidecar.val_generating_args.repetition_penalty",
        "in validation alone: trained tokens need their true probability",
    ),
    _row("chat_template_kwargs", "model.enable_thinking model.chat_template"),
    _row("generation_kwargs", "sidecar.generating_args"),
    _row("use_vllm", "sidecar.engine=vllm"),
    _row("use_vllm=False", "sidecar.engine=embedded", "the default"),
    _row("vllm_mode", "sidecar.colocate=true", '`"colocate"`; engines are processes of the run'),
    _row("vllm_mode=server", "sidecar.colocate=false", "the default; engines are processes of the run"),
    _row(
        "vllm_server_host vllm_server_port vllm_server_base_url vllm_server_timeout",
        "",
        "there is no server: engines are processes of the run",
    ),
    _row("vllm_enable_sleep_mode", "", "engines do not sleep"),
    _row("vllm_gpu_memory_utilization", "sidecar.gpu_memory_utilization"),
    _row("vllm_tensor_parallel_size", "sidecar.tensor_parallel_size", "with `sidecar.engine=vllm_async`"),
    _row("vllm_max_model_length", "sidecar.max_model_len"),
    _row(
        "vllm_importance_sampling_mode",
        "algorithm.correction.level algorithm.correction.mode",
        '`"sequence_mask"` is `sequence` and `mask`',
    ),
    _row("vllm_importance_sampling_cap", "algorithm.correction.high"),
    _row("max_staleness", "max_staleness", "in steps, and kept token by token"),
    _row("weight_sync_steps", "sync_interval"),
    _row(
        "learning_rate lr_scheduler_type warmup_steps",
        "learner.optimizer.learning_rate learner.optimizer.schedule learner.optimizer.warmup_steps",
    ),
    _row("weight_decay max_grad_norm", "learner.optimizer.weight_decay learner.optimizer.grad_clip"),
    _row(
        "adam_beta1 adam_beta2 adam_epsilon",
        "learner.optimizer.beta1 learner.optimizer.beta2 learner.optimizer.eps",
    ),
    _row("optim adafactor", "", "it is AdamW, with the keys of `learner.optimizer`"),
    _row("bf16 gradient_checkpointing", "model.dtype=bf16 model.remat=full"),
    _row("bf16=False gradient_checkpointing=False", "model.dtype=fp32 model.remat=none", "the default"),
    _row("gradient_checkpointing_kwargs", "model.remat"),
    _row("model_init_kwargs torch_dtype", "model.dtype", "no other argument of a model is needed"),
    _row("deepspeed fsdp fsdp_config", "learner.mesh.fsdp"),
    _row(
        "use_liger_kernel use_liger_loss torch_compile",
        "",
        "XLA compiles all, and logits exist for `model.logprob_chunk` tokens at once",
    ),
    _row("disable_dropout", "model.lora.dropout", "there is no other dropout, and this is 0"),
    _row("num_train_epochs max_steps", "total_epochs max_steps", "the first that ends"),
    _row("save_steps eval_steps logging_steps", "save_steps eval_steps logging_steps"),
    _row("save_total_limit", "learner.checkpoints_to_keep"),
    _row("output_dir run_name", "run_dir", "its name is that of the run"),
    _row("seed", "seed"),
    _row("use_peft peft_config", "model.lora.rank", "with `alpha`, `targets`, `dropout` and `rslora` beside it"),
    _row("resume_from_checkpoint", "", "the same command resumes"),
    _row("eval_on_start", "", "version 0 is always validated"),
    _row("push_to_hub hub_model_id", "", "nothing is uploaded; `mode=export` writes a Hugging Face directory"),
    _row("report_to", "observe.tensorboard observe.wandb", "no MLflow; `metrics.jsonl` is always written"),
    _row("log_completions num_completions_to_print", "observe.samples_per_step"),
)
VERL: tuple[Habit, ...] = (
    _row("data.train_files data.val_files", "tasks.train.NAME.source tasks.validation.NAME.source"),
    _row("data.prompt_key", "tasks.train.NAME.prompt_key", "a text, or messages"),
    _row("data.max_prompt_length data.max_response_length", "model.max_prompt_tokens model.max_response_tokens"),
    _row("data.train_batch_size", "rollout_batch_size", "times `rollout.n`: attempts, not prompts"),
    _row("data.gen_batch_size", "", "each group that a filter drops is replaced"),
    _row("data.val_batch_size data.seed", "val_batch_size seed"),
    _row("data.shuffle", "tasks.train.NAME.shuffle"),
    _row("data.truncation", "", "no prompt is cut: one above `model.max_prompt_tokens` is a bad row"),
    _row("data.filter_overlong_prompts", "tasks.on_bad_row=skip", "at each prompt's turn"),
    _row(
        "data.filter_overlong_prompts=False",
        "tasks.on_bad_row=fail",
        "the default: a prompt above `model.max_prompt_tokens` ends the run",
    ),
    _row("data.reward_fn_key", "tasks.train.NAME.tag_key", "a taskset with tags and rewards for each of its values"),
    _row("data.return_raw_chat", "", "a column of messages is read as it is"),
    _row("data.image_key data.video_key", "", "there are texts alone"),
    _row("data.dataloader_num_workers data.filter_overlong_prompts_workers", "", "rows are read by the run itself"),
    _row("data.apply_chat_template_kwargs.*", "model.enable_thinking model.chat_template"),
    _row("custom_reward_function.path custom_reward_function.name", "tasks.train.NAME.rewards", "`module:function`"),
    _row("reward_model.model.path reward_model.enable", "reward_models.NAME.path", "with the reward `reward_model`"),
    _row("reward_model.enable=False", "", "there is none unless it is named"),
    _row("reward_model.reward_manager", "tasks.train.NAME.rewards", "functions, for each taskset"),
    _row("reward_model.overlong_buffer.enable", "algorithm.overlong", "`penalty`"),
    _row("reward_model.overlong_buffer.enable=False", "algorithm.overlong=keep", "the default"),
    _row(
        "reward_model.overlong_buffer.len reward_model.overlong_buffer.penalty_factor",
        "algorithm.overlong_buffer algorithm.overlong_penalty",
    ),
    _row("actor_rollout_ref.model.path", "model.path"),
    _row("actor_rollout_ref.model.enable_gradient_checkpointing", "model.remat=full"),
    _row("actor_rollout_ref.model.enable_gradient_checkpointing=False", "model.remat=none", "the default"),
    _row(
        "actor_rollout_ref.model.lora_rank actor_rollout_ref.model.lora_alpha actor_rollout_ref.model.target_modules",
        "model.lora.rank model.lora.alpha model.lora.targets",
        "0 is no rank",
    ),
    _row("actor_rollout_ref.model.trust_remote_code", "", "no code that comes with a model is run"),
    _row(
        "actor_rollout_ref.model.use_liger actor_rollout_ref.model.use_fused_kernels "
        "actor_rollout_ref.actor.use_torch_compile",
        "",
        "XLA compiles all, and logits exist for `model.logprob_chunk` tokens at once",
    ),
    _row(
        "actor_rollout_ref.actor.fsdp_config.param_offload actor_rollout_ref.actor.fsdp_config.optimizer_offload "
        "actor_rollout_ref.ref.fsdp_config.param_offload actor_rollout_ref.model.enable_activation_offload",
        "",
        "nothing is offloaded to the host; `learner.mesh.fsdp` cuts it over more devices",
    ),
    _row("actor_rollout_ref.actor.strategy actor_rollout_ref.ref.strategy", "learner.mesh", "its axes"),
    _row("actor_rollout_ref.model.use_remove_padding", "", "rows are always packed"),
    _row("actor_rollout_ref.actor.use_prefix_grouper", "learner.share_prompts"),
    _row(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "algorithm.minibatch_size",
        "times `rollout.n`: attempts, not prompts",
    ),
    _row(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu critic.ppo_micro_batch_size_per_gpu",
        "learner.rows_per_microbatch",
        "rows, of all devices together",
    ),
    _row(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu "
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        "",
        "log-probabilities are of `learner.rows_per_microbatch` rows",
    ),
    _row(
        "actor_rollout_ref.actor.use_dynamic_bsz actor_rollout_ref.rollout.log_prob_use_dynamic_bsz "
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz trainer.balance_batch",
        "",
        "rows are always packed",
    ),
    _row(
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu "
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        "learner.max_tokens_per_row",
        "of one row",
    ),
    _row("actor_rollout_ref.actor.ppo_epochs", "algorithm.ppo_epochs"),
    _row(
        "actor_rollout_ref.actor.clip_ratio",
        "algorithm.loss.clip_low algorithm.loss.clip_high",
        "set both: each has its own default",
    ),
    _row(
        "actor_rollout_ref.actor.clip_ratio_low actor_rollout_ref.actor.clip_ratio_high",
        "algorithm.loss.clip_low algorithm.loss.clip_high",
    ),
    _row("actor_rollout_ref.actor.clip_ratio_c", "algorithm.loss.dual_clip", "3.0 there, off here"),
    _row(
        "actor_rollout_ref.actor.policy_loss.loss_mode", "algorithm.pg_variant", "`vanilla` is `ppo`; `gspo` is `gspo`"
    ),
    _row("actor_rollout_ref.actor.loss_agg_mode", "algorithm.aggregation", "the same names"),
    _row("actor_rollout_ref.actor.entropy_coeff", "algorithm.entropy_coef"),
    _row("actor_rollout_ref.actor.use_kl_loss", "algorithm.kl.where=loss"),
    _row("actor_rollout_ref.actor.use_kl_loss=False", "algorithm.kl.where=none", "the default"),
    _row("actor_rollout_ref.actor.kl_loss_coef", "algorithm.kl.coef"),
    _row(
        "actor_rollout_ref.actor.kl_loss_type",
        "algorithm.kl.estimator",
        "`kl` is `k1`, `mse` is `k2`, `low_var_kl` is `k3`",
    ),
    _row(
        "actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.optim.lr_warmup_steps",
        "learner.optimizer.learning_rate learner.optimizer.warmup_steps",
    ),
    _row(
        "actor_rollout_ref.actor.optim.weight_decay actor_rollout_ref.actor.optim.min_lr_ratio",
        "learner.optimizer.weight_decay learner.optimizer.min_lr_ratio",
    ),
    _row(
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "learner.optimizer.warmup_steps",
        "updates, and no share of them",
    ),
    _row(
        "actor_rollout_ref.actor.optim.warmup_style actor_rollout_ref.actor.optim.lr_scheduler_type",
        "learner.optimizer.schedule",
    ),
    _row("actor_rollout_ref.actor.optim.betas", "learner.optimizer.beta1 learner.optimizer.beta2"),
    _row("actor_rollout_ref.actor.optim.total_training_steps", "", "it follows from `max_steps`"),
    _row("actor_rollout_ref.actor.grad_clip", "learner.optimizer.grad_clip"),
    _row("actor_rollout_ref.actor.fsdp_config.fsdp_size", "learner.mesh.fsdp"),
    _row(
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size actor_rollout_ref.ref.ulysses_sequence_parallel_size",
        "learner.mesh.sequence",
    ),
    _row(
        "actor_rollout_ref.actor.tis_imp_ratio_cap",
        "algorithm.correction.high",
        "with `algorithm.correction.level=token`",
    ),
    _row("actor_rollout_ref.rollout.name", "sidecar.engine", "`vllm`, or `vllm_async` for several devices each"),
    _row("actor_rollout_ref.rollout.n", "group_size"),
    _row(
        "actor_rollout_ref.rollout.temperature actor_rollout_ref.rollout.top_p",
        "sidecar.generating_args.temperature sidecar.generating_args.top_p",
    ),
    _row("actor_rollout_ref.rollout.top_k", "sidecar.generating_args.top_k", "off is `top_k=0` here"),
    _row("actor_rollout_ref.rollout.val_kwargs.*", "sidecar.val_generating_args.*"),
    _row(
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "sidecar.tensor_parallel_size",
        "with `sidecar.engine=vllm_async`",
    ),
    _row("actor_rollout_ref.rollout.gpu_memory_utilization", "sidecar.gpu_memory_utilization"),
    _row("actor_rollout_ref.rollout.max_num_seqs", "sidecar.max_concurrency"),
    _row(
        "actor_rollout_ref.rollout.prompt_length actor_rollout_ref.rollout.response_length",
        "model.max_prompt_tokens model.max_response_tokens",
    ),
    _row("actor_rollout_ref.rollout.mode", "", "requests are always under way side by side"),
    _row("actor_rollout_ref.rollout.free_cache_engine", "", "engines do not sleep"),
    _row(
        "actor_rollout_ref.rollout.load_format actor_rollout_ref.rollout.enable_prefix_caching",
        "sidecar.load_format sidecar.enable_prefix_caching",
    ),
    _row(
        "actor_rollout_ref.rollout.max_model_len actor_rollout_ref.rollout.enforce_eager",
        "sidecar.max_model_len sidecar.enforce_eager",
    ),
    _row("actor_rollout_ref.rollout.engine_kwargs.vllm.*", "sidecar.engine_args.*"),
    _row("actor_rollout_ref.rollout.calculate_log_probs", "", "always"),
    _row(
        "actor_rollout_ref.rollout.multi_turn",
        "rollout.train_env_manager.tags",
        _MANY_TURNS,
    ),
    _row("algorithm.adv_estimator", "algorithm.adv_estimator", "`reinforce_plus_plus` is `reinforce++`"),
    _row(
        "algorithm.gamma algorithm.lam",
        "algorithm.advantage.gamma algorithm.advantage.lambd",
        "of estimators that have them",
    ),
    _row("algorithm.norm_adv_by_std_in_grpo", "algorithm.adv_estimator", "`False` is `dr_grpo`"),
    _row("algorithm.use_kl_in_reward", "algorithm.kl.where=reward"),
    _row("algorithm.use_kl_in_reward=False", "algorithm.kl.where=none", "the default"),
    _row(
        "algorithm.kl_ctrl.kl_coef algorithm.kl_ctrl.target_kl algorithm.kl_ctrl.horizon",
        "algorithm.kl.coef algorithm.kl.target algorithm.kl.horizon",
        "`type: fixed` is no target",
    ),
    _row("algorithm.filter_groups.enable", "algorithm.filters=group_variance"),
    _row("algorithm.filter_groups.enable=False", "algorithm.filters=()", "the default"),
    _row(
        "algorithm.filter_groups.metric algorithm.filter_groups.max_num_gen_batches",
        "",
        "it is the reward, and each group that is dropped is replaced",
    ),
    _row("critic.model.path", "", "the critic begins with the policy's weights"),
    _row(
        "critic.optim.lr critic.cliprange_value", "algorithm.critic.optimizer.learning_rate algorithm.critic.value_clip"
    ),
    _row("trainer.critic_warmup", "algorithm.critic.warmup_steps"),
    _row("trainer.total_epochs trainer.total_training_steps", "total_epochs max_steps", "the first that ends"),
    _row("trainer.save_freq trainer.test_freq", "save_steps eval_steps"),
    _row("trainer.max_actor_ckpt_to_keep", "learner.checkpoints_to_keep"),
    _row("trainer.val_only", "mode=evaluate"),
    _row("trainer.val_only=False", "mode=both", "the default"),
    _row("trainer.val_before_train", "", "version 0 is always validated"),
    _row("trainer.default_local_dir trainer.experiment_name", "run_dir"),
    _row("trainer.project_name", "observe.wandb", "the project of Weights & Biases"),
    _row("trainer.resume_mode trainer.resume_from_path", "", "the same command resumes"),
    _row("trainer.device", "learner.devices sidecar.devices"),
    _row("trainer.n_gpus_per_node", "learner.devices sidecar.devices"),
    _row("trainer.nnodes", "learner.devices sidecar.devices launcher=ray"),
    _row("trainer.nnodes=1", "launcher=local", "the default"),
    _row("trainer.logger", "observe.tensorboard observe.wandb", "no MLflow; `metrics.jsonl` is always written"),
    _row(
        "trainer.log_val_generations trainer.rollout_data_dir trainer.validation_data_dir", "observe.samples_per_step"
    ),
    _row("async_training.staleness_threshold", "async_generation_ratio", "batches ahead, not a share"),
    _row("async_training.trigger_parameter_sync_step", "sync_interval", "in steps"),
    _row("async_training.partial_rollout", "sidecar.update_policy=in_flight", "the default"),
    _row("async_training.partial_rollout=False", "sidecar.update_policy=drain"),
)
HABITS = {"TRL": TRL, "verl": VERL}


def table(whose: str) -> Iterator[str]:
    """Yields the lines of a program's table in Markdown."""
    yield from (f"| {whose} | here | |", "|---|---|---|")
    for row in HABITS[whose]:
        theirs, here = (", ".join(f"`{key}`" for key in keys) for keys in (row.theirs, row.here))
        yield f"| {theirs} |{here and f' {here}'} |{row.remark and f' {row.remark}'} |"


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1])))
