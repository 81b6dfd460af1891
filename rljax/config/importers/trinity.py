"""Trinity-RFT's keys: what becomes of each; see `rljax.config.importers.rule`."""

from __future__ import annotations

from rljax.config.importers import adapters
from rljax.config.importers import trinity_devices as placed
from rljax.config.importers import trinity_objective as objective
from rljax.config.importers import trinity_values as made
from rljax.config.importers.rule import Rule, choice, counted, needless, only, read_by, refused, same, to
from rljax.config.importers.trinity_buffer import BUFFER
from rljax.config.registries import ESTIMATORS, policy_losses

_ENGINE = "explorer.rollout_model"
_RESUMES = "the same command resumes a run; another run_dir begins a new one"
_RECORDED = "ratios are to the log-probabilities recorded with the samples; pg_variant=decoupled_ppo recomputes besides"
_ROW = "rows are always packed; learner.max_tokens_per_row is their length"
_OWN = "the run's own files say it: run_dir has metrics, trace, samples and a report"
_PROCESSES = "processes are started as they are needed"
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "auto": "auto"}
_KL = "algorithm.kl.where algorithm.kl.estimator algorithm.kl.coef"
_ADVANTAGE = "algorithm.adv_estimator algorithm.advantage.* algorithm.whiten_advantages"
_LOSS = "algorithm.pg_variant algorithm.loss.*"


def _each(group: str, keys: str, why: str) -> list[Rule]:
    return [needless(f"{group}.{key}".lstrip("."), why) for key in keys.split()]


OF_EACH = ("mode", "cluster.node_num", "cluster.gpu_per_node")
"""Keys that each file of a pair says for itself."""
RULES: tuple[Rule, ...] = (
    to(
        "mode",
        "mode checkpoint sidecar.colocate serve.follow",
        made.mode,
        "of a pair EXPLORER.yaml,TRAINER.yaml: both; bench is evaluate with checkpoint=all; colocate is both with "
        "sidecar.colocate; serve follows the run, and records nothing of what it answers",
        "both",
    ),
    *[
        to(key, "run_dir", made.run_dir, "checkpoint_root_dir/project/group/name", default)
        for key, default in (("project", "Trinity-RFT"), ("name", "rft"), ("checkpoint_root_dir", "./checkpoints"))
    ],
    to("group", "run_dir", made.run_dir, "a part of it"),
    needless("continue_from_checkpoint", _RESUMES),
    *_each("", "ray_namespace ignore_validator_suggestions", "nothing has to be said"),
    # algorithm
    to(
        "algorithm.algorithm_type",
        f"{_ADVANTAGE} {_LOSS} {_KL} algorithm.aggregation",
        objective.algorithm,
        "its estimator, loss and divergence",
        "ppo",
    ),
    to(
        "algorithm.repeat_times",
        "group_size rollout_batch_size",
        counted(made.batch),
        "rollout_batch_size counts trajectories: tasks times it",
        1,
    ),
    to("algorithm.advantage_fn", _ADVANTAGE, objective.advantage, "ppo is gae, whitened"),
    to("algorithm.policy_loss_fn", _LOSS, objective.loss),
    to("algorithm.kl_loss_fn", _KL, objective.kl, "where=loss; low_var_kl is k3_clamped"),
    to("algorithm.kl_penalty_fn", _KL, objective.kl, "where=reward"),
    *[
        to(f"algorithm.{key}_args.kl_coef", "algorithm.kl.coef", objective.kl_coef)
        for key in ("kl_loss_fn", "kl_penalty_fn")
    ],
    *[
        refused(f"algorithm.{key}_args.adaptive", "write --config.algorithm.kl.target", "algorithm.kl.target")
        for key in ("kl_loss_fn", "kl_penalty_fn")
    ],
    *[
        read_by(rule, (policy_losses,), objective.loss_name)
        for rule in (
            to(
                "algorithm.policy_loss_fn_args.clip_range",
                "algorithm.loss.clip_low algorithm.loss.clip_high",
                lambda f: {"algorithm.loss.clip_low": f.value, "algorithm.loss.clip_high": f.value},
            ),
            same("algorithm.policy_loss_fn_args.clip_range_low", "algorithm.loss.clip_low"),
            same("algorithm.policy_loss_fn_args.clip_range_high", "algorithm.loss.clip_high"),
            same("algorithm.policy_loss_fn_args.clip_ratio_c", "algorithm.loss.dual_clip"),
            same("algorithm.policy_loss_fn_args.baseline_shift", "algorithm.loss.shift", "with pg_variant=asymre"),
            same("algorithm.policy_loss_fn_args.tau", "algorithm.loss.tau", "with pg_variant=opmd"),
        )
    ],
    *[
        read_by(rule, ESTIMATORS, objective.estimator)
        for rule in (
            same("algorithm.advantage_fn_args.gamma", "algorithm.advantage.gamma", "with gae"),
            same("algorithm.advantage_fn_args.lam", "algorithm.advantage.lambd", "with gae"),
        )
    ],
    needless("algorithm.advantage_fn_args.epsilon", "1e-6 always"),
    only(
        "algorithm.entropy_loss_fn",
        ("none", "default"),
        "algorithm.entropy_coef is its weight, 0 none",
        "write --config.algorithm.entropy_coef",
        "algorithm.entropy_coef",
    ),
    same("algorithm.entropy_loss_fn_args.entropy_coef", "algorithm.entropy_coef"),
    same("algorithm.loss_agg_mode", "algorithm.aggregation"),
    needless("algorithm.bypass_old_logprobs", _RECORDED),
    refused(
        "algorithm.rollout_correction",
        "write --config.algorithm.correction.level=token",
        "algorithm.correction.level",
        whole=True,
    ),
    only(
        "algorithm.sample_strategy",
        ("default", "warmup"),
        "each batch is trained when it is whole",
        "write --config.algorithm.drop_staler_than for staleness_control, algorithm.expert_data_ratio for mix",
        "algorithm.drop_staler_than",
        "algorithm.expert_data_ratio",
    ),
    same("algorithm.sample_strategy_args.max_staleness", "algorithm.drop_staler_than"),
    same(
        "algorithm.sample_strategy_args.expert_data_ratio",
        "algorithm.expert_data_ratio",
        "its data: tasks.expert.source",
    ),
    needless("algorithm.add_strategy", "groups are stored whole"),
    same("algorithm.optimizer.lr", "learner.optimizer.learning_rate", "", 1e-6),
    same("algorithm.optimizer.weight_decay", "learner.optimizer.weight_decay", "", 0.01),
    to(
        "algorithm.optimizer.betas",
        "learner.optimizer.beta1 learner.optimizer.beta2",
        lambda f: {"learner.optimizer.beta1": f.value[0], "learner.optimizer.beta2": f.value[1]},
    ),
    same("algorithm.optimizer.clip_grad", "learner.optimizer.grad_clip"),
    to(
        "algorithm.optimizer.lr_warmup_steps",
        "learner.optimizer.warmup_steps",
        lambda f: {"learner.optimizer.warmup_steps": max(f.value, 0)},
        "-1 is 0",
    ),
    to(
        "algorithm.optimizer.lr_warmup_steps_ratio",
        "learner.optimizer.warmup_steps",
        objective.warmup_ratio,
        "times max_steps, which must be known",
    ),
    *[
        to(
            f"algorithm.optimizer.{key}",
            "learner.optimizer.schedule",
            objective.schedule,
            "to max_steps, which must be known",
        )
        for key in ("lr_scheduler_type", "warmup_style")
    ],
    to(
        "algorithm.optimizer.min_lr_ratio",
        "learner.optimizer.min_lr_ratio",
        objective.least_rate,
        "of a decay",
        0.01,
    ),
    only("algorithm.optimizer.optimizer_type", ("adam", "adamw"), "AdamW", "write adamw"),
    # model
    same("model.model_path", "model.path"),
    needless("model.critic_model_path", "the critic begins with the policy's weights"),
    to(
        "model.max_response_tokens",
        "model.max_response_tokens model.max_prompt_tokens",
        counted(made.lengths),
        "",
        2048,
    ),
    to("model.max_prompt_tokens", "model.max_prompt_tokens", counted(made.lengths)),
    to(
        "model.max_model_len",
        "model.max_prompt_tokens model.max_response_tokens sidecar.max_model_len",
        counted(made.lengths),
        "prompt and response together",
    ),
    only("model.min_response_tokens", (0, 1), "every response has a token", "write 1"),
    needless("model.enable_prompt_truncation", "a prompt above model.max_prompt_tokens is a bad row"),
    *[same(f"model.{key}", f"sidecar.generating_args.{key}") for key in ("temperature", "top_p")],
    to(
        "model.top_k",
        "sidecar.generating_args.top_k",
        lambda f: {"sidecar.generating_args.top_k": max(f.value, 0)},
        "-1 is 0",
    ),
    only(
        "model.repetition_penalty",
        (1, 1.0),
        "1 changes nothing",
        "what is sampled so is not of the policy that is trained; write 1, or for validation "
        "--config.sidecar.val_generating_args.repetition_penalty",
    ),
    same("model.chat_template_path", "model.chat_template"),
    same("model.enable_thinking", "model.enable_thinking"),
    same(f"{_ENGINE}.chat_template", "model.chat_template"),
    same(f"{_ENGINE}.enable_thinking", "model.enable_thinking"),
    to("model.lora_configs", " ".join(adapters.KEYS), adapters.of_trinity, "a list of one", whole=True),
    *[
        refused(f"model.{key}", "write it into the model's config.json", whole=True)
        for key in ("rope_scaling", "rope_theta")
    ],
    refused("model.tinker", "leave it out", whole=True),
    # cluster
    to(
        "cluster.node_num",
        "learner.devices sidecar.devices learner.hosts.number launcher",
        counted(placed.cluster),
        "above 1: launcher=ray, and a host of the learner for each node that it has",
        1,
    ),
    to(
        "cluster.gpu_per_node",
        "learner.devices learner.mesh.fsdp sidecar.devices",
        counted(placed.cluster),
        "of a pair or two shells: the trainer has the first GPUs of a node of 8, the explorer the last",
        8,
    ),
    same("cluster.ray_address", "ray.address", "with launcher=ray"),
    *BUFFER,
    # explorer
    same("explorer.name", "explorer.name", "", "explorer"),
    to(
        "explorer.runner_per_model",
        "sidecar.max_concurrency",
        counted(made.concurrency),
        "attempts, not tasks, under way on each engine: runners times repeat_times",
        8,
    ),
    same(f"{_ENGINE}.engine_num", "sidecar.num_engines", "", 1),
    same(f"{_ENGINE}.tensor_parallel_size", "sidecar.tensor_parallel_size", "", 1),
    choice(f"{_ENGINE}.engine_type", "sidecar.engine", {"vllm": "vllm_async", "vllm_async": "vllm_async"}, "", "vllm"),
    same(f"{_ENGINE}.enable_prefix_caching", "sidecar.enable_prefix_caching"),
    same(f"{_ENGINE}.enforce_eager", "sidecar.enforce_eager"),
    choice(f"{_ENGINE}.dtype", "sidecar.dtype", _DTYPES, "", "bfloat16"),
    same(f"{_ENGINE}.seed", "sidecar.seed", "", 42),
    to(
        f"{_ENGINE}.gpu_memory_utilization",
        "sidecar.gpu_memory_utilization",
        made.memory,
        "of mode: colocate left out: 0.4",
        0.9,
    ),
    same(f"{_ENGINE}.max_model_len", "sidecar.max_model_len"),
    *_each(
        _ENGINE,
        "enable_history enable_openai_api tool_call_parser reasoning_parser enable_auto_tool_choice bundle_indices",
        "nothing has to be said",
    ),
    refused(
        "explorer.auxiliary_models",
        "write --config.judges.NAME.path=MODEL, and llm_judge among the rewards of a taskset",
        "judges.*.path",
        whole=True,
    ),
    to(
        "explorer.max_timeout",
        "rollout.trajectory_timeout",
        lambda f: {"rollout.trajectory_timeout": float(f.value)},
        "seconds of one attempt",
    ),
    same("explorer.max_retry_times", "rollout.max_retries"),
    to("explorer.eval_interval", "eval_steps", made.evaluates, "None without eval_tasksets", 100),
    needless("explorer.eval_on_startup", "a validation comes before the first step"),
    *_each(
        "explorer",
        "concurrent_mode max_repeat_times_per_runner runner_num",
        _PROCESSES,
    ),
    same("explorer.proxy_port", "serve.port", "of mode serve"),
    to("explorer.bench_on_latest_checkpoint", "checkpoint", made.benched, "of mode: bench; false is all"),
    needless("explorer.env_vars", "write NAME=VALUE before the command", whole=True),
    refused(
        "explorer.over_rollout.ratio",
        "write --config.rollout.train_env_manager.group_size_redundancy, against stragglers",
        "rollout.train_env_manager.group_size_redundancy",
    ),
    *_each("explorer.over_rollout", "wait_after_min return_partial_tasks", "there is no over-rollout"),
    *_each("explorer.dynamic_timeout", "enable ratio warmup_step", "rollout.trajectory_timeout is one number"),
    to(
        "explorer.max_inflight_batches",
        "async_generation_ratio",
        made.in_flight,
        "of fully_async",
    ),
    # trainer
    only("trainer.trainer_type", ("verl",), "the learner is JAX's", "leave it out"),
    only(
        "trainer.trainer_strategy",
        ("fsdp", "fsdp2"),
        "sharded over learner.mesh.fsdp",
        "write fsdp",
        "learner.mesh.fsdp",
    ),
    to(
        "trainer.save_interval",
        "save_steps",
        lambda f: {"save_steps": f.value} if f.value else "0: the last alone",
        "0, the last alone, is left to save_steps",
    ),
    needless("trainer.save_hf_checkpoint", "mode=export writes a Hugging Face directory"),
    to(
        "trainer.max_checkpoints_to_keep",
        "learner.checkpoints_to_keep",
        lambda f: {"learner.checkpoints_to_keep": f.value or None},
        "0 is None: all. Left out, 2 are kept here",
    ),
    same("trainer.grad_clip", "learner.optimizer.grad_clip", "", 1.0),
    needless("trainer.use_dynamic_bsz", _ROW),
    to(
        "trainer.max_token_len_per_gpu",
        "learner.rows_per_microbatch learner.max_tokens_per_row",
        counted(placed.rows),
        "their product, on each device",
        None,
    ),
    to(
        "trainer.ulysses_sequence_parallel_size",
        "learner.mesh.sequence",
        lambda f: {"learner.mesh.sequence": f.value},
        "",
    ),
    same("trainer.critic_warmup", "algorithm.critic.warmup_steps", "with gae"),
    *_each(
        "trainer",
        "actor_grad_clip total_steps fix_actor_microbatch_loss_scale enable_preview project_name experiment_name",
        "nothing has to be said",
    ),
    refused("trainer.trainer_config", "verl's own; leave it out, and write learner", "learner.*", whole=True),
    refused("trainer.trainer_config_path", "verl's own; leave it out, and write learner", "learner.*"),
    # synchronizer
    placed.channel(
        choice(
            "synchronizer.sync_method",
            "sync_method",
            {m: m for m in ("checkpoint", "memory", "nccl")},
            "nccl sends from one process: from a trainer of several nodes it is checkpoint",
            "nccl",
        )
    ),
    to(
        "synchronizer.sync_interval",
        "async_generation_ratio sync_interval fill_interval",
        counted(made.sync_interval),
        "the batches of an interval are generated beside their training: fill_interval",
        1,
    ),
    to(
        "synchronizer.sync_offset",
        "async_generation_ratio",
        made.sync_offset,
        "how many batches the explorers are ahead",
        0,
    ),
    to(
        "synchronizer.sync_style",
        "async_generation_ratio",
        made.in_flight,
        "fixed fills the interval; no style leaves staleness unbounded",
        "fixed",
    ),
    to("synchronizer.sync_timeout", "wait_timeout", made.wait_timeout, "the longer of it and max_read_timeout"),
    needless("synchronizer.wait_for_checkpoint", "a version is read once it is whole"),
    *[
        to(f"synchronizer.{key}", "sync_interval", made.of_both, "sync_interval, which is of both")
        for key in ("explorer_sync_interval", "trainer_sync_interval")
    ],
    needless("synchronizer.ray_namespace", "the run directory is where the parts meet"),
    # the rest
    needless("monitor", _OWN, whole=True),
    needless("log", _OWN, whole=True),
    refused("data_processor", "tasks and experiences are read as they are; leave it out", whole=True),
    refused("service", "leave it out", whole=True),
    refused("stages", "write a file for each stage", whole=True),
)
"""Trinity-RFT's keys."""
