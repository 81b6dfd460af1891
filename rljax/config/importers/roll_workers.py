"""ROLL's keys of workers, those that train and those that generate: what becomes of each."""

from __future__ import annotations

from rljax.config.importers import adapters
from rljax.config.importers import roll_devices as placed
from rljax.config.importers import roll_objective as goal
from rljax.config.importers import roll_values as made
from rljax.config.importers.rule import Rule, choice, counted, needless, only, read_by, refused, same, to
from rljax.config.registries import policy_losses

_TRAIN, _INFER = "actor_train", "actor_infer"
_CONFIG = f"{_TRAIN}.strategy_args.strategy_config"
_ENGINE = f"{_INFER}.strategy_args.strategy_config"
_SAMPLING = f"{_INFER}.generating_args"
_PACKED = "rows are always packed; learner.max_tokens_per_row is their length"
_BY_HARDWARE = "attention and kernels are chosen by the hardware"
_SHARDED = "parameters, gradients and moments are sharded over learner.mesh.fsdp"
_LOADED = "the model's directory says it"
_NO_FP16 = "there is no training in fp16; write bf16, or --config.model.dtype=bf16"


def _each(group: str, keys: str, why: str) -> list[Rule]:
    return [needless(f"{group}.{key}", why) for key in keys.split()]


def _engine_dtype(found: made.Found) -> made.Values:
    if found.value not in ("bf16", "fp32", "fp16"):
        raise made.Refusal("write bf16, fp16 or fp32, or --config.sidecar.dtype=bf16", "sidecar.dtype")
    return {"sidecar.dtype": found.value}


def _same_model(found: made.Found) -> made.Values:
    return {"model.path": found.value}


_MODEL_ARGS = (
    "attn_implementation gradient_checkpointing_use_reentrant device_map model_type num_labels model_config_kwargs"
)
LEARNER: list[Rule] = [
    to(f"{_TRAIN}.model_args.model_name_or_path", "model.path", _same_model, "that of pretrain"),
    to(f"{_TRAIN}.model_args.dtype", "model.dtype", made.dtype, "bf16 or fp32; masters are always fp32", "bf16"),
    to(
        f"{_TRAIN}.model_args.disable_gradient_checkpointing",
        "model.remat",
        made.remat,
        "true is none, false full",
        False,
    ),
    to(f"{_TRAIN}.model_args.ulysses_size", "learner.mesh.sequence", lambda f: {"learner.mesh.sequence": f.value}),
    *_each(f"{_TRAIN}.model_args", "attn_implementation flash_attn", _BY_HARDWARE),
    *_each(f"{_TRAIN}.model_args", _MODEL_ARGS.partition(" ")[2], _LOADED),
    to(
        f"{_TRAIN}.model_args.moe_aux_loss_coef",
        "algorithm.router_aux_loss_coef",
        lambda f: {"algorithm.router_aux_loss_coef": f.value} if f.value else "no loss of the routers",
    ),
    refused(f"{_TRAIN}.model_args.freeze_module_prefix", "all parameters are trained; leave it out"),
    refused(
        f"{_TRAIN}.model_args.adapter_name_or_path", "leave it out, and write its directory as --config.model.path"
    ),
    *[
        to(f"{_TRAIN}.model_args.lora_{key}", " ".join(adapters.KEYS), adapters.of_roll, remark)
        for key, remark in (
            ("target", "names with commas, or all-linear"),
            ("rank", "8 where lora_target alone is written"),
            ("alpha", "twice lora_rank where it is left out"),
        )
    ],
    same(f"{_TRAIN}.model_args.lora_dropout", "model.lora.dropout"),
    same(f"{_TRAIN}.training_args.learning_rate", "learner.optimizer.learning_rate", "", 5e-5),
    choice(
        f"{_TRAIN}.training_args.lr_scheduler_type",
        "learner.optimizer.schedule",
        {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"},
        "to 0 at max_steps",
        "linear",
    ),
    same(f"{_TRAIN}.training_args.warmup_steps", "learner.optimizer.warmup_steps", "optimizer updates, as there"),
    to(
        f"{_TRAIN}.training_args.warmup_ratio",
        "learner.optimizer.warmup_steps",
        made.warmup_ratio,
        "times max_steps, times the updates of a step",
    ),
    same(f"{_TRAIN}.training_args.weight_decay", "learner.optimizer.weight_decay", "", 0.0),
    same(f"{_TRAIN}.training_args.adam_beta1", "learner.optimizer.beta1"),
    same(f"{_TRAIN}.training_args.adam_beta2", "learner.optimizer.beta2"),
    to(
        f"{_TRAIN}.training_args.per_device_train_batch_size",
        "learner.rows_per_microbatch algorithm.minibatch_size",
        counted(made.microbatch),
        "rows of all devices in one pass; times gradient_accumulation_steps it is the minibatch",
        8,
    ),
    to(
        f"{_TRAIN}.training_args.gradient_accumulation_steps",
        "algorithm.minibatch_size",
        counted(made.minibatch),
        "per_device_train_batch_size × gradient_accumulation_steps × data-parallel size",
        1,
    ),
    *_each(f"{_TRAIN}.training_args", "max_steps num_train_epochs", "the run's max_steps says it"),
    *_each(f"{_TRAIN}.training_args", "seed data_seed", "the run's seed is the seed of everything"),
    *_each(f"{_TRAIN}.training_args", "output_dir save_hf_model", "mode=export writes a Hugging Face directory"),
    *_each(f"{_TRAIN}.training_args", "dataloader_num_workers bf16", "nothing has to be said"),
    needless(f"{_TRAIN}.training_args.tf32", "float32 is multiplied in float32; model.dtype=bf16 is what is fast"),
    refused(f"{_TRAIN}.training_args.fp16", _NO_FP16, "model.dtype"),
    only(
        f"{_TRAIN}.strategy_args.strategy_name",
        ("megatron_train", "fsdp2_train", "deepspeed_train"),
        "the learner is JAX's: mesh axes take the place of a strategy",
        "write megatron_train, fsdp2_train or deepspeed_train: their sizes become learner.mesh",
        "learner.mesh.*",
    ),
    same(f"{_CONFIG}.tensor_model_parallel_size", "learner.mesh.tensor", "of an engine: sidecar.tensor_parallel_size"),
    same(f"{_CONFIG}.context_parallel_size", "learner.mesh.sequence"),
    only(
        f"{_CONFIG}.pipeline_model_parallel_size",
        (1,),
        "one stage",
        "there are no pipeline stages; write 1, and a larger tensor_model_parallel_size",
        "learner.mesh.tensor",
        "learner.mesh.fsdp",
    ),
    only(f"{_CONFIG}.virtual_pipeline_model_parallel_size", (1,), "one stage", "there are no pipeline stages; write 1"),
    to(
        f"{_CONFIG}.expert_model_parallel_size",
        placed.EXPERT,
        placed.experts,
        "of what tensor and sequence leave of the devices; 1: dense models have no experts",
    ),
    needless(f"{_CONFIG}.use_distributed_optimizer", _SHARDED),
    to(
        f"{_CONFIG}.sequence_parallel",
        "learner.sequence_parallel",
        made.sequence_parallel,
        "between blocks time is cut over mesh.tensor",
    ),
    *[
        to(
            f"{_CONFIG}.{key}",
            "learner.reduce_dtype",
            lambda f: {"learner.reduce_dtype": "fp32" if f.value else "auto"},
        )
        for key in ("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    ],
    to(f"{_CONFIG}.recompute_granularity", "model.remat", made.remat, "full is full, selective is dots"),
    *_each(_CONFIG, "recompute_method recompute_num_layers recompute_modules", "model.remat says it, of all layers"),
    *_each(
        _CONFIG,
        "overlap_grad_reduce overlap_param_gather bucket_size bias_activation_fusion moe_token_dispatcher_type "
        "reshard_after_forward apply_rope_fusion gradient_accumulation_fusion",
        "XLA schedules and fuses by itself",
    ),
    to(f"{_CONFIG}.param_dtype", "model.dtype", made.dtype, "of fsdp2_train; masters are always fp32"),
    to(f"{_CONFIG}.reduce_dtype", "learner.reduce_dtype", made.reduce_dtype, "of fsdp2_train"),
    to(
        f"{_CONFIG}.fsdp_size",
        "learner.mesh.fsdp learner.mesh.data",
        placed.learner_devices,
        "of fsdp2_train; 1, -1 and all devices are one axis",
    ),
    to(f"{_CONFIG}.zero_optimization", "", made.offloaded, f"{_SHARDED}; nothing is offloaded", whole=True),
    refused(f"{_CONFIG}.offload_policy", "parameters stay on the accelerators; leave it out"),
    *_each(
        _CONFIG,
        "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer train_batch_size gradient_clipping "
        "train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print wall_clock_breakdown",
        "DeepSpeed alone reads it",
    ),
    *[
        needless(f"{_CONFIG}.{key}", "model.dtype says it", whole=True)
        for key in ("bf16", "fp16", "communication_data_type")
    ],
    to(
        f"{_TRAIN}.device_mapping",
        "learner.devices learner.hosts.number learner.mesh.fsdp learner.mesh.data launcher",
        placed.learner_devices,
        "the fsdp axis is what tensor and sequence leave of the devices; a host for each node, and launcher=ray for "
        "several",
    ),
    only(f"{_TRAIN}.num_gpus_per_worker", (1,), "a device each", "write 1"),
    choice(
        f"{_TRAIN}.pg_variant",
        "algorithm.pg_variant",
        {name: name for name in ("vanilla", "ppo", "tis", "topr", "cispo", "kimi15")},
        "",
        "ppo",
    ),
    to(
        f"{_TRAIN}.worker_cls",
        "",
        made.worker_class("its loss as", "algorithm.pg_variant=module:function"),
        "pg_variant names the loss; there are no classes of workers",
    ),
    *[
        read_by(rule, (policy_losses,), goal.loss_name)
        for rule in (
            same(f"{_TRAIN}.tis_lower_bound", "algorithm.loss.low", "with pg_variant=tis"),
            same(f"{_TRAIN}.tis_upper_bound", "algorithm.loss.high", "with pg_variant=tis"),
            same(f"{_TRAIN}.topr_positive_weight", "algorithm.loss.positive_weight", "with pg_variant=topr"),
            same(f"{_TRAIN}.topr_negative_weight", "algorithm.loss.negative_weight", "with pg_variant=topr"),
            same(f"{_TRAIN}.cispo_epsilon_low", "algorithm.loss.clip_low", "with pg_variant=cispo"),
            same(f"{_TRAIN}.cispo_epsilon_high", "algorithm.loss.clip_high", "with pg_variant=cispo"),
            same(f"{_TRAIN}.cispo_use_unified_mask", "algorithm.loss.use_unified_mask", "with pg_variant=cispo"),
            same(f"{_TRAIN}.kimi15_tau", "algorithm.loss.tau", "with pg_variant=kimi15"),
        )
    ],
    *_each(_TRAIN, "infer_batch_size", "log-probabilities are of learner.rows_per_microbatch rows"),
    *_each(
        _TRAIN,
        "use_dynamic_batching_in_train use_dynamic_batching_in_infer sequence_length_round_in_train "
        "sequence_length_round_in_infer use_sequence_packing",
        _PACKED,
    ),
    needless(f"{_TRAIN}.sequence_packing_args", _PACKED, whole=True),
    to(f"{_TRAIN}.max_tokens_per_microbatch_in_train", "learner.rows_per_microbatch", counted(made.dynamic), _PACKED),
    needless(f"{_TRAIN}.max_tokens_per_microbatch_in_infer", _PACKED),
    *_each(_TRAIN, "logits_in_fp32 apply_loss_scale offload_nccl", "log-probabilities are always computed in float32"),
    to(f"{_TRAIN}.router_replay.mode", "algorithm.router_replay", made.router_replay, made.ROUTER_REPLAY),
    refused(f"{_TRAIN}.opd_kl_coef", "write --config.algorithm.distill.teachers.NAME.coef", "algorithm.distill.*"),
]
"""The worker that trains."""

ENGINES: list[Rule] = [
    to(f"{_INFER}.model_args.model_name_or_path", "model.path", _same_model, "that of pretrain"),
    to(f"{_INFER}.model_args.dtype", "sidecar.dtype", _engine_dtype, "bf16, fp32, or with vllm fp16"),
    needless(f"{_INFER}.model_args.disable_gradient_checkpointing", "engines compute no gradient"),
    *_each(f"{_INFER}.model_args", "attn_implementation flash_attn model_type", _BY_HARDWARE),
    same(f"{_SAMPLING}.temperature", "sidecar.generating_args.temperature", "", 0.95),
    same(f"{_SAMPLING}.top_p", "sidecar.generating_args.top_p", "", 0.7),
    to(
        f"{_SAMPLING}.top_k",
        "sidecar.generating_args.top_k",
        made.top_k("sidecar.generating_args.top_k"),
        "-1 is 0",
        50,
    ),
    to(
        f"{_SAMPLING}.max_new_tokens",
        "sidecar.generating_args.max_new_tokens sidecar.val_generating_args.max_new_tokens",
        made.turn_budget,
        "of a turn; of RLVR response_length",
        8192,
    ),
    needless(f"{_SAMPLING}.max_length", "max_new_tokens says it"),
    to(f"{_SAMPLING}.num_return_sequences", "", made.sequences, "that of the group, or 1: group_size says it"),
    to(
        f"{_SAMPLING}.stop_strings",
        "sidecar.generating_args.stop",
        lambda f: {"sidecar.generating_args.stop": tuple(f.value or ())},
    ),
    needless(f"{_SAMPLING}.include_stop_str_in_output", "tokens are never trimmed"),
    needless(f"{_SAMPLING}.logprobs", "log-probabilities are always recorded"),
    only(f"{_SAMPLING}.num_beams", (1,), "attempts are sampled", "there is no beam search; write 1"),
    only(f"{_SAMPLING}.do_sample", (True,), "attempts are sampled", "greedy samples teach nothing; write true"),
    *[
        only(
            f"{_SAMPLING}.{key}",
            (1, 1.0),
            "1 changes nothing",
            "the learner's log-probabilities would not be the engine's; write 1",
        )
        for key in ("repetition_penalty", "length_penalty")
    ],
    to(
        f"{_INFER}.strategy_args.strategy_name",
        "sidecar.engine",
        made.engine,
        "vllm; vllm_async where an engine has several GPUs; there is no sglang",
        "vllm",
    ),
    to(f"{_ENGINE}.gpu_memory_utilization", "sidecar.gpu_memory_utilization", placed.memory),
    to(f"{_ENGINE}.mem_fraction_static", "sidecar.gpu_memory_utilization", placed.memory, "sglang's name"),
    same(f"{_ENGINE}.block_size", "sidecar.block_size"),
    same(f"{_ENGINE}.load_format", "sidecar.load_format"),
    same(f"{_ENGINE}.max_model_len", "sidecar.max_model_len"),
    same(f"{_ENGINE}.enforce_eager", "sidecar.enforce_eager"),
    same(f"{_ENGINE}.enable_prefix_caching", "sidecar.enable_prefix_caching"),
    same(f"{_ENGINE}.max_num_seqs", "sidecar.max_concurrency"),
    same(f"{_ENGINE}.tensor_parallel_size", "sidecar.tensor_parallel_size"),
    same(f"{_ENGINE}.tp_size", "sidecar.tensor_parallel_size", "sglang's name"),
    same(f"{_ENGINE}.tensor_model_parallel_size", "sidecar.tensor_parallel_size", "Megatron's name"),
    same(f"{_ENGINE}.max_num_batched_tokens", "sidecar.engine_args.max_num_batched_tokens", "an argument of vLLM"),
    needless(f"{_ENGINE}.swap_space", "vLLM swaps no KV any more: it reads again what it had no room for"),
    needless(f"{_ENGINE}.disable_log_stats", "rljax's metrics have what engines do"),
    needless(f"{_ENGINE}.sleep_level", "engines do not sleep"),
    to(
        f"{_INFER}.device_mapping",
        "sidecar.devices sidecar.num_engines sidecar.colocate launcher",
        placed.engines,
        "an engine for each, or for each tensor_parallel_size; launcher=ray where they are on another node",
    ),
    to(
        f"{_INFER}.num_gpus_per_worker",
        "sidecar.tensor_parallel_size",
        lambda f: {"sidecar.tensor_parallel_size": placed.engine_gpus(f.document)},
        "of one engine",
    ),
    *_each(_INFER, "infer_batch_size", "sidecar.max_concurrency says how many are under way"),
    to(
        f"{_INFER}.worker_cls",
        "",
        made.worker_class("what it does as", "rollout.workflow=module:Class"),
        "there are no classes of workers",
    ),
    to(f"{_INFER}.router_replay.mode", "algorithm.router_replay", made.router_replay, "of actor_train, or of both"),
    needless(f"{_INFER}.data_args", "actor_train's say it", whole=True),
    needless(f"{_INFER}.training_args", "engines do not train", whole=True),
    to("reference", "", made.reference, "the policy that the run began with, on the learner's devices", whole=True),
    *[
        to(
            f"critic.training_args.{theirs}",
            f"algorithm.critic.optimizer.{ours}",
            goal.of_critic(ours),
            "with gae",
        )
        for theirs, ours in (
            ("learning_rate", "learning_rate"),
            ("warmup_steps", "warmup_steps"),
            ("weight_decay", "weight_decay"),
            ("lr_scheduler_type", "schedule"),
        )
    ],
    *[
        needless(
            f"critic.{key}",
            "the critic has the policy's architecture, devices and batches",
            whole=key != "device_mapping",
        )
        for key in ("model_args", "strategy_args", "data_args", "device_mapping")
    ],
    *_each("critic", "infer_batch_size num_gpus_per_worker worker_cls", "the critic is the learner's"),
    *_each(
        "critic.training_args",
        "per_device_train_batch_size gradient_accumulation_steps",
        "the critic has the policy's batches",
    ),
    *[
        needless(f"{role}.{key}", why, whole=key == "system_envs")
        for role in (_TRAIN, _INFER, "critic")
        for key, why in (
            ("name", "workers have no names"),
            ("world_size", "device_mapping says it"),
            ("system_envs", "the shell's environment is the program's"),
            ("model_update_frequency", "sync_interval says it"),
            ("backend_timeout", "wait_timeout says it"),
            ("max_concurrency", "nothing has to be said"),
        )
    ],
]
"""The workers that generate, and the others."""

WORKERS: tuple[Rule, ...] = (*LEARNER, *ENGINES)
