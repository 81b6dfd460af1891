"""Translates what takes more than a name: ROLL's units, devices and objective in ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rljax.config.fields import shown
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values

_RANGE = re.compile(r"list\(\s*range\(\s*(\d{1,4})\s*(?:,\s*(\d{1,4})\s*)?(?:,\s*(\d{1,3})\s*)?\)\s*\)")
_LIST = re.compile(r"\[\s*(\d{1,4}(?:\s*,\s*\d{1,4})*)?\s*,?\s*\]")
_NO_DEVICES = "write list(range(0,4)), [0, 1, 2, 3] or a sum of such"
_MEGATRON = "actor_train.strategy_args.strategy_config"
_TRAINING = "actor_train.training_args"
_TENSOR = "tensor_model_parallel_size"


def indices(value: Any) -> list[int]:
    """Returns the devices that a ``device_mapping`` names; it is parsed, never evaluated.

    Raises:
        Refusal: it is neither a list, nor a range, nor a sum of such.
    """
    if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 10**4 for item in value):
        return sorted(set(value))
    found: set[int] = set()
    for part in value.split("+") if isinstance(value, str) and len(value) < 1000 else [""]:
        if ranged := _RANGE.fullmatch(part.strip()):
            first, last, step = ranged.groups()
            low, high = (0, int(first)) if last is None else (int(first), int(last))
            found |= set(range(low, high, max(int(step or 1), 1)))
        elif listed := _LIST.fullmatch(part.strip()):
            found |= {int(item) for item in (listed[1] or "").split(",") if item.strip()}
        else:
            raise Refusal(_NO_DEVICES)
    if not found:
        raise Refusal(f"names no device; {_NO_DEVICES}")
    return sorted(found)


def devices(numbers: Sequence[int]) -> str:
    """Returns ``gpu:0-3,6`` for the indices."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][-1] = number
        else:
            spans.append([number, number])
    return "gpu:" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)


def _mapped(document: Document, role: str, otherwise: Any) -> list[int]:
    found = document.get(f"{role}.device_mapping")
    try:
        return indices(found) if found is not None else otherwise
    except Refusal as refusal:
        raise Refusal(f"{role}.device_mapping={shown(found)}: {refusal}") from None


def _train_devices(document: Document) -> list[int]:
    return _mapped(document, "actor_train", [0])


def parallel(document: Document, *names: str) -> int:
    """Returns the product of the sizes of the axes of the learner, which are 1 by default."""
    size = 1
    for name in names:
        size *= document.number(f"{_MEGATRON}.{name}", 1) or 1
    return size


def replicas(document: Document) -> int:
    """Returns the data-parallel size of the learner: its devices over those of a replica.

    Raises:
        Refusal: they do not divide.
    """
    stages = parallel(document, "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size")
    stages *= document.number("actor_train.model_args.ulysses_size", 1) or 1
    world = len(_train_devices(document))
    if world % stages:
        raise Refusal(f"{world} devices are no multiple of the {stages} that a replica takes; write others")
    return world // stages


def learner_devices(found: Found) -> Values:
    """Translates ``actor_train.device_mapping``: devices, and the mesh axis that is left of them."""
    node, numbers = found.document.number("num_gpus_per_node", 8), _train_devices(found.document)
    if len({number // node for number in numbers}) > 1:
        raise Refusal(
            f"{len(numbers)} GPUs are on {len({n // node for n in numbers})} nodes of {node} (num_gpus_per_node), and "
            f"a learner is on one; write --config.learner.devices=gpu:0-{node - 1}, and a learner.mesh of as many",
            "learner.devices",
        )
    placed = {"learner.devices": devices([number % node for number in numbers])}
    whole, shards = replicas(found.document), found.document.get(f"{_MEGATRON}.fsdp_size", 1)
    if not 1 < shards < whole:  # as there: all of them
        return placed | {"learner.mesh.fsdp": whole}
    if whole % shards:
        raise Refusal(f"fsdp_size={shards} does not divide {whole} devices; write another", "learner.mesh.fsdp")
    return placed | {"learner.mesh.fsdp": shards, "learner.mesh.data": whole // shards}


def minibatch(found: Found) -> Values:
    """Translates ``per_device_train_batch_size`` × ``gradient_accumulation_steps`` × data-parallel size."""
    document, batch = found.document, trajectories(found.document)
    rows, dp = document.number(f"{_TRAINING}.per_device_train_batch_size"), replicas(document)
    update = rows * document.number(f"{_TRAINING}.gradient_accumulation_steps") * dp
    if update < batch and batch % update:
        raise Refusal(
            f"{update} trajectories an update do not divide the {batch} of a step; write --config.algorithm."
            "minibatch_size, or another gradient_accumulation_steps",
            "algorithm.minibatch_size",
        )
    return {"algorithm.minibatch_size": min(update, batch)}


def microbatch(found: Found) -> Values:
    """Translates both what an update holds and the rows of a pass, which are of all devices here."""
    rows = found.document.number(f"{_TRAINING}.per_device_train_batch_size")
    return {"learner.rows_per_microbatch": rows * replicas(found.document), **minibatch(found)}


def group(document: Document) -> int:
    """Returns the trajectories of a task."""
    return int(document.number(_group_path(document), 1))


def group_size(found: Found) -> Values | str:
    """Translates the key of a group that the pipeline reads."""
    path = _group_path(found.document)
    return {"group_size": group(found.document)} if found.path == path else f"{path} says it"


def _group_path(document: Document) -> str:
    return "num_return_sequences_in_group" if is_rlvr(document) else "train_env_manager.group_size"


def trajectories(document: Document) -> int:
    """Returns the trajectories of a step: RLVR counts prompts, agentic trajectories."""
    batch = int(document.number("rollout_batch_size"))
    return batch * group(document) if is_rlvr(document) else batch


def is_rlvr(document: Document) -> bool:
    """Returns whether it is a file of the RLVR pipeline, and not of the agentic one."""
    agentic = ("train_env_manager", "val_env_manager", "custom_envs", "reward_normalization", "env_monitor")
    if any(document.given(path) is not LEFT_OUT for path in agentic):
        return False
    rlvr = ("rewards", "num_return_sequences_in_group", "response_length", "validation", "actor_train.data_args")
    return any(document.given(path) is not LEFT_OUT for path in rlvr)


def engines(found: Found) -> Values:
    """Translates ``actor_infer.device_mapping``: where engines are, and how many."""
    document = found.document
    numbers, mine = _mapped(document, "actor_infer", [0]), set(_train_devices(document))
    each, node = engine_gpus(document), document.number("num_gpus_per_node", 8)
    if len(numbers) % each:
        raise Refusal(f"{len(numbers)} devices are no multiple of the {each} of an engine; write others")
    placed: dict[str, Any] = {"sidecar.devices": devices(numbers), "sidecar.num_engines": len(numbers) // each}
    if mine & set(numbers):
        placed["sidecar.colocate"] = True
    elif max(numbers) >= node:
        placed["launcher"] = "ray"
    return placed


def engine_gpus(document: Document) -> int:
    """Returns the devices of one engine."""
    config, names = "actor_infer.strategy_args.strategy_config", ("tensor_parallel_size", "tp_size", _TENSOR)
    said = [document.number(f"{config}.{name}") for name in names]
    return int(next(filter(None, said), document.number("actor_infer.num_gpus_per_worker", 1)))


def engine(found: Found) -> Values:
    """Translates ``actor_infer.strategy_args.strategy_name``."""
    if found.value in ("sglang", "hf_infer", "megatron_infer", "fsdp2_infer"):
        raise Refusal(f"there is no {found.value} engine; write --config.sidecar.engine=vllm", "sidecar.engine")
    if found.value != "vllm":
        raise Refusal("not one of vllm, sglang; write --config.sidecar.engine=vllm", "sidecar.engine")
    return {"sidecar.engine": "vllm_async" if engine_gpus(found.document) > 1 else "vllm"}


def remat(found: Found) -> Values:
    """Translates Megatron's ``recompute_granularity`` where there is one, else whether gradient checkpointing is on."""
    granularity = found.document.get(f"{_MEGATRON}.recompute_granularity")
    off = found.document.get("actor_train.model_args.disable_gradient_checkpointing")
    named = {"full": "full", "selective": "dots"}
    if granularity is not None and granularity not in named:
        raise Refusal("write full or selective, or --config.model.remat=none", "model.remat")
    return {"model.remat": "none" if off else named.get(granularity or "full", "full")}


def run_dir(found: Found) -> Values:
    """Translates ``output_dir`` and ``exp_name``."""
    folder, name = found.document.get("output_dir"), found.document.get("exp_name", found.document.name)
    return {"run_dir": f"{str(folder).rstrip('/')}/{name}"}


def lengths(found: Found) -> Values:
    """Translates the budgets of prompt, response and trajectory."""
    get, number = found.document.get, found.document.number
    if is_rlvr(found.document):
        prompt, response = number("prompt_length"), number("response_length") or number("sequence_length")
        whole = number("sequence_length")
        if number("response_length") is None:
            response = (whole or 0) - prompt
        if response < 1 or (whole is not None and whole != prompt + response):
            raise Refusal("prompt_length and response_length must add up to sequence_length; write the first two")
        return {"model.max_prompt_tokens": prompt, "model.max_response_tokens": response}
    whole = number("sequence_length") or number("prompt_length") + (number("response_length") or 0)
    turn = min(get("actor_infer.generating_args.max_new_tokens", 8192), whole - 1)
    return {
        "model.sequence_length": whole,
        "model.max_response_tokens": turn,
        "model.max_prompt_tokens": max(whole - turn, 1),
    }


def turn_budget(found: Found) -> Values:
    """Translates ``max_new_tokens`` of ``generating_args``: of RLVR it is the response, as ROLL itself has it."""
    budget = lengths(found)["model.max_response_tokens"]
    other = is_rlvr(found.document) and any(found.document.get(key) is not None for key in VALIDATED)
    return {"sidecar.generating_args.max_new_tokens": budget, **({} if other else {_VALIDATION: budget})}


_VALIDATION = "sidecar.val_generating_args.max_new_tokens"
VALIDATED = ("val_prompt_length", "val_sequence_length")


def validated(found: Found) -> Values | str:
    """Translates `VALIDATED` of RLVR: what the first leaves of the second."""
    document, number = found.document, found.document.number
    if not is_rlvr(document):
        return "a validation of environments has the lengths of training"
    trained = lengths(found)
    prompt = number("val_prompt_length", trained["model.max_prompt_tokens"])
    whole = number("val_sequence_length") or sum(trained.values())
    if prompt >= whole:
        raise Refusal(f"val_prompt_length={prompt} leaves nothing of val_sequence_length={whole}; write a larger one")
    budget, most = whole - prompt, trained["model.max_response_tokens"]
    if budget > most:
        raise Refusal(
            f"val_prompt_length={prompt} leaves {budget} tokens of val_sequence_length={whole}, and a response has at "
            f"most {most} (response_length); write a smaller val_sequence_length",
            _VALIDATION,
            "model.max_response_tokens",
            here={_VALIDATION: budget},
        )
    return {_VALIDATION: budget}


def warmup_ratio(found: Found) -> Values | str:
    """Translates ``warmup_ratio``: of all optimizer updates, which are several a step."""
    if not found.value:
        return "it is 0"
    key, document = "learner.optimizer.warmup_steps", found.document
    try:
        updates = trajectories(document) // minibatch(found)["algorithm.minibatch_size"]
    except Refusal as refusal:
        raise Refusal(f"{refusal}; here write --config.{key}, in optimizer updates", key) from None
    return {key: round(found.value * document.number("max_steps") * updates * document.number("ppo_epochs"))}


def reduce_dtype(found: Found) -> Values:
    """Translates ``reduce_dtype`` of FSDP."""
    named = {"fp32": "fp32", "float32": "fp32", "bf16": "auto", "bfloat16": "auto"}
    if found.value not in named:
        raise Refusal("write fp32 or bf16, or --config.learner.reduce_dtype=fp32", "learner.reduce_dtype")
    return {"learner.reduce_dtype": named[found.value]}


def dtype(found: Found) -> Values | str:
    """Translates the dtype of the learner: FSDP's ``param_dtype``, else the model's."""
    given = found.document.get(f"{_MEGATRON}.param_dtype")
    if given is not None and not found.path.endswith("param_dtype"):
        return "param_dtype says it"
    named = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}
    if found.value not in named:
        raise Refusal("there is no training in fp16; write bf16, or --config.model.dtype=bf16", "model.dtype")
    return {"model.dtype": named[found.value]}


def offloaded(found: Found) -> str:
    """Translates ``zero_optimization``, whose stages say what is sharded, and offloading what is elsewhere."""
    groups = [value for key, value in found.value.items() if key.startswith("offload_")]
    if any(group if not isinstance(group, dict) else group.get("device", "none") != "none" for group in groups):
        raise Refusal(
            "nothing is offloaded to the host; leave it out, and write --config.learner.mesh.fsdp where more devices "
            "are needed",
            "learner.mesh.fsdp",
        )
    return "parameters, gradients and moments are sharded over learner.mesh.fsdp, whatever the stage"


def reference(found: Found) -> str:
    """Translates ``reference``, which is the model that is trained, as it was."""
    get = found.document.get
    model = (found.value.get("model_args") or {}).get("model_name_or_path")
    policy = get("pretrain") or get("actor_train.model_args.model_name_or_path")
    if model not in (None, policy) and (get("use_kl_loss") or get("add_token_level_kl")):
        raise Refusal(
            "the reference is the policy that the run begins with; leave it out, or write use_kl_loss: false",
            "algorithm.kl.where",
        )
    return "the reference is the policy that the run began with, on the learner's devices"


def chat(found: Found) -> str:
    """Translates a template by ROLL's name: ``global_template``, those of ``tag_to_template``, or the data's own."""
    if found.path.endswith("data_args.template") and found.document.get("global_template"):
        return "global_template says it"
    named = found.value.values() if isinstance(found.value, dict) else [found.value]
    if other := [str(name) for name in named if name not in _TEMPLATES]:
        raise Refusal(
            f"{', '.join(other)}: the model's own chat template is used; write native, or "
            "--config.model.chat_template=FILE.jinja, for native_nonthinking --config.model.enable_thinking=false",
            "model.chat_template",
            "model.enable_thinking",
        )
    return "the model's own chat template is used"


_TEMPLATES = ("native", "qwen2_5", "qwen3")
"""ROLL's names of the model's own chat template."""


def top_k(key: str) -> Any:
    """Returns the function of a ``top_k``, whose -1 is 0 here."""
    return lambda found: {key: 0 if found.value == -1 else found.value}


def sequences(found: Found) -> str:
    """Translates ``num_return_sequences`` must be that of the group, or 1."""
    if found.value in (None, 1, group(found.document)):
        return "group_size says it: each attempt is a request of its own"
    raise Refusal(f"the group has {group(found.document)}; write the same number in both places, or leave it out")


def dynamic(found: Found) -> Values:
    """Translates ``max_tokens_per_microbatch_in_train``: tokens of a device, and here rows of all devices."""
    whole = found.document.number("sequence_length") or sum(
        found.document.number(f"{part}_length", 1) or 1 for part in ("prompt", "response")
    )
    return {"learner.rows_per_microbatch": max(int(found.value) // whole, 1) * replicas(found.document)}


def sequence_parallel(found: Found) -> Values | str:
    """Translates ``sequence_parallel``, which one shard of the tensor axis has nothing to cut for."""
    if found.value and parallel(found.document, "tensor_model_parallel_size") == 1:
        return "tensor_model_parallel_size=1 has nothing to cut"
    return {"learner.sequence_parallel": found.value}
