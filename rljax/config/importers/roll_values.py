"""Translates what takes more than a name: ROLL's units, devices and objective in ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rljax.config.importers.published import EXAMPLES
from rljax.config.importers.roll_devices import engine_gpus, replicas
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values, no_choice
from rljax.config.importers.translation import Row

_MEGATRON = "actor_train.strategy_args.strategy_config"
_TRAINING = "actor_train.training_args"
_ROWS = "learner.rows_per_microbatch"
ROUTER_REPLAY = "R3 is replay, of engines that record routes; there is no R2"
OWN_CLASS = "workers of your own do not run here"
_MOST = 10**5
"""Square root of the largest batch of which all divisors are looked at."""


def _replicas(document: Document, *keys: str) -> int:
    """Returns `replicas`; where devices do not tell them, an override of these keys settles what needs them."""
    try:
        return replicas(document)
    except Refusal as refusal:
        raise Refusal(str(refusal), *keys, of=refusal.of) from None


def minibatch(found: Found) -> Values:
    """Translates ``per_device_train_batch_size`` × ``gradient_accumulation_steps`` × data-parallel size."""
    document, batch = found.document, trajectories(found.document)
    accumulated = f"{_TRAINING}.gradient_accumulation_steps"
    rows, dp = (
        document.number(f"{_TRAINING}.per_device_train_batch_size"),
        _replicas(document, "algorithm.minibatch_size"),
    )
    update = rows * document.number(accumulated) * dp
    if update < batch and batch % update:
        fitting = [size for size in _divisors(batch) if size % (rows * dp) == 0] or [batch]
        passes = -(-_nearest(update, fitting) // (rows * dp))
        raise Refusal(
            f"{update} trajectories an update do not divide the {batch} of a step; nearest that works: "
            f"gradient_accumulation_steps: {passes}, or --config.algorithm.minibatch_size="
            f"{_nearest(update, _divisors(batch))}",
            "algorithm.minibatch_size",
            of=accumulated if document.given(accumulated) is not LEFT_OUT else "rollout_batch_size",
        )
    return {"algorithm.minibatch_size": min(update, batch)}


def _divisors(number: int) -> list[int]:
    low = [one for one in range(1, min(math.isqrt(number), _MOST) + 1) if number % one == 0]
    return sorted({*low, *(number // one for one in low)})


def _nearest(number: int, there: Sequence[int]) -> int:
    return min(there, key=lambda one: abs(one - number))


def microbatch(found: Found) -> Values:
    """Translates both what an update holds and the rows of a pass, which are of all devices here."""
    rows = found.document.number(f"{_TRAINING}.per_device_train_batch_size")
    here = {_ROWS: rows * _replicas(found.document, _ROWS)}
    try:
        return {**here, **minibatch(found)}
    except Refusal as refusal:  # of what an update holds, which the rows of a pass do not depend on
        raise Refusal(str(refusal), "algorithm.minibatch_size", here=here, of=refusal.of) from None


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
    return not _has(document, _AGENTIC) and _has(document, _RLVR)


def untold(document: Document) -> Iterator[Row]:
    """Yields the row of what a file trains, where no key tells its pipeline."""
    if not _has(document, (*_AGENTIC, *_RLVR)):
        why = (
            f"the file has neither a key of environments ({', '.join(_AGENTIC)}) nor one of RLVR ({', '.join(_RLVR)}); "
            "write one, or --config.rollout.train_env_manager.tags with --config.group_size, and "
            "--config.rollout.val_env_manager.tags for what validates, or give it the name of the published file that "
            f"leaves them out: {', '.join(EXAMPLES)}"
        )
        ours = ("rollout.train_env_manager.*", "tasks.train.*")
        yield Row("train_env_manager or rewards, left out", ..., True, {}, why, True, ours, ("group_size",))


def _has(document: Document, paths: Sequence[str]) -> bool:
    return any(document.given(path) is not LEFT_OUT for path in paths)


_AGENTIC = ("train_env_manager", "val_env_manager", "custom_envs", "reward_normalization", "env_monitor")
_RLVR = ("rewards", "num_return_sequences_in_group", "response_length", "validation", "actor_train.data_args")


def engine(found: Found) -> Values:
    """Translates ``actor_infer.strategy_args.strategy_name``."""
    if found.value != "vllm":
        raise Refusal(f"there is no {found.value} engine; write --config.sidecar.engine=vllm", "sidecar.engine")
    return {"sidecar.engine": "vllm_async" if engine_gpus(found.document) > 1 else "vllm"}


def router_replay(found: Found) -> Values | str:
    """Translates ``router_replay.mode``."""
    if found.value == "R3":
        return {"algorithm.router_replay": "replay"}
    if found.value == "disable":
        return "the learner chooses the experts"
    if found.value == "R2":
        raise Refusal(
            "the learner's own earlier choices are not kept; write R3, the engines'", "algorithm.router_replay"
        )
    raise no_choice(found.value, ("disable", "R3"), "algorithm.router_replay")


def remat(found: Found) -> Values:
    """Translates Megatron's ``recompute_granularity`` where there is one, else whether gradient checkpointing is on."""
    path = f"{_MEGATRON}.recompute_granularity"
    granularity = found.document.get(path)
    off = found.document.get("actor_train.model_args.disable_gradient_checkpointing")
    named = {"full": "full", "selective": "dots"}
    if granularity is not None and granularity not in named:
        raise Refusal("write full or selective, or --config.model.remat=none", "model.remat", of=path)
    return {"model.remat": "none" if off else named.get(granularity or "full", "full")}


def run_dir(found: Found) -> Values:
    """Translates ``output_dir`` and ``exp_name``."""
    folder, name = found.document.get("output_dir"), found.document.get("exp_name", found.document.name)
    return {"run_dir": f"{str(folder).rstrip('/')}/{name}"}


def lengths(found: Found) -> Values:
    """Translates the budgets of prompt, response and trajectory."""
    number, rlvr = found.document.number, is_rlvr(found.document)
    if found.path in (("prompt_length", "response_length", "sequence_length") if rlvr else ("sequence_length", _TURN)):
        number(found.path)  # of several mistakes its own is the first
    if rlvr:
        prompt, response = number("prompt_length"), number("response_length") or number("sequence_length")
        whole = number("sequence_length")
        if number("response_length") is None:
            response = (whole or 0) - prompt
        if response < 1 or (whole is not None and whole != prompt + response):
            raise Refusal(
                "prompt_length and response_length must add up to sequence_length; write the first two",
                *_LENGTHS,
                of="sequence_length",
            )
        return {"model.max_prompt_tokens": prompt, "model.max_response_tokens": response}
    whole = number("sequence_length") or number("prompt_length") + (number("response_length") or 0)
    asked, said = number(_TURN, 8192), found.document.given(_TURN) is not LEFT_OUT
    if said and asked >= whole:
        raise Refusal(
            f"max_new_tokens={asked} leaves a prompt no room in a trajectory of {whole} tokens (sequence_length); "
            "write a smaller max_new_tokens, or a larger sequence_length",
            "model.sequence_length",
            *_LENGTHS,
            here={
                "model.sequence_length": whole,
                "model.max_response_tokens": asked,
                _SAMPLED: asked,
                _VALIDATION: asked,
            },
            of=_TURN,
        )
    turn = min(asked, whole - 1)  # left out it is what the prompt leaves, as there
    return {
        "model.sequence_length": whole,
        "model.max_response_tokens": turn,
        "model.max_prompt_tokens": max(whole - turn, 1),
    }


def turn_budget(found: Found) -> Values:
    """Translates ``max_new_tokens`` of ``generating_args``: of RLVR it is the response, as ROLL itself has it."""
    budget = lengths(found)["model.max_response_tokens"]
    other = is_rlvr(found.document) and any(found.document.get(key) is not None for key in VALIDATED)
    return {_SAMPLED: budget, **({} if other else {_VALIDATION: budget})}


_TURN = "actor_infer.generating_args.max_new_tokens"
_LENGTHS = ("model.max_response_tokens", "model.max_prompt_tokens")
_SAMPLED = "sidecar.generating_args.max_new_tokens"
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
        raise Refusal(
            f"val_prompt_length={prompt} leaves nothing of val_sequence_length={whole}; write a larger one",
            _VALIDATION,
            of="val_sequence_length",
        )
    budget, most = whole - prompt, trained["model.max_response_tokens"]
    if budget > most:
        raise Refusal(
            f"val_prompt_length={prompt} leaves {budget} tokens of val_sequence_length={whole}, and a response has at "
            f"most {most} (response_length); write a smaller val_sequence_length",
            _VALIDATION,
            "model.max_response_tokens",
            here={_VALIDATION: budget},
            of="val_sequence_length",
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
        raise Refusal(str(refusal), key, of=refusal.of) from None
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
    if found.value in ("fp16", "float16"):
        raise Refusal("there is no training in fp16; write bf16, or --config.model.dtype=bf16", "model.dtype")
    if not isinstance(found.value, str) or found.value not in named:
        raise no_choice(found.value, ("bf16", "fp32"), "model.dtype")
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
    said = "group_size says it: each attempt is a request of its own"
    try:
        size = group(found.document)
    except Refusal:  # of the group's own key
        return said
    if found.value in (None, 1, size):
        return said
    raise Refusal(f"the group has {size}; write the same number in both places, or leave it out")


def dynamic(found: Found) -> Values:
    """Translates ``max_tokens_per_microbatch_in_train``: tokens of a device, and here rows of all devices."""
    whole = found.document.number("sequence_length") or sum(
        found.document.number(f"{part}_length", 1) or 1 for part in ("prompt", "response")
    )
    if int(found.value) < whole:
        raise Refusal(f"below one sequence of {whole} tokens; write {whole} or more, or --config.{_ROWS}", _ROWS)
    return {_ROWS: int(found.value) // whole * _replicas(found.document, _ROWS)}


def is_own(worker: Any) -> bool:
    """Returns whether a ``worker_cls`` is a class of the user's: in a module that is none of ROLL's."""
    package, dot, _ = str(worker).partition(".")
    return bool(dot) and package != "roll"


def worker_class(write: str, key: str) -> Any:
    """Returns the function of a ``worker_cls``: what stands in the place of a class of the user's is ``key``."""

    def made(found: Found) -> str:
        if is_own(found.value):
            raise Refusal(f"{OWN_CLASS}; write {write} --config.{key}", key.partition("=")[0])
        return "there are no classes of workers"

    return made


def sequence_parallel(found: Found) -> Values | str:
    """Translates ``sequence_parallel``, which one shard of the tensor axis has nothing to cut for."""
    if found.value and found.document.number(f"{_MEGATRON}.tensor_model_parallel_size", 1) == 1:
        return "tensor_model_parallel_size=1 has nothing to cut"
    return {"learner.sequence_parallel": found.value}
