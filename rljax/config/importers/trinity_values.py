"""Translates what takes more than a name: Trinity-RFT's units, devices and algorithms in ours."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rljax.config.importers.published import ROWS
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Rule, Values, nearest, no_choice

MODES = ("both", "train", "explore", "bench", "colocate", "serve")
NODE = 8
"""GPUs of a node on which trainer and explorer have a file each: the trainer takes the first, the explorer the last."""
_TASKSET = "buffer.explorer_input.taskset"
_ENGINE = "explorer.rollout_model"
_HOSTS = "learner.hosts.number"
_LENGTHS = {f"model.max_{part}_tokens": f"model.max_{part}_tokens" for part in ("prompt", "response")}


_OVERRIDDEN: tuple[dict[str, str], ...] = (
    {f"{_ENGINE}.engine_num": "sidecar.num_engines"},
    {f"{_ENGINE}.tensor_parallel_size": "sidecar.tensor_parallel_size"},
    _LENGTHS,
    {**_LENGTHS, "model.max_model_len": "sidecar.max_model_len"},
)
"""Numbers of a file and ours that are the same: overrides of all in a group are read in the place of its keys."""


def overridden(overrides: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Returns our key and its value by the path that an override is read in the place of; what is no whole number above
    0 is told of the override.
    """
    numbers = {key: int(value) for key, value in overrides.items() if re.fullmatch("[1-9][0-9]{0,8}", str(value))}
    groups = [group for group in _OVERRIDDEN if numbers.keys() >= set(group.values())]
    return {path: (key, numbers[key]) for group in groups for path, key in group.items()}


def mode(found: Found) -> Values:
    """Translates ``mode``; Trinity's server takes over what is trained beside it."""
    if found.value == "serve":
        return {"mode": "serve", "serve.follow": True}
    if found.value == "bench":
        return {"mode": "evaluate", "checkpoint": _benched(found.document)}
    if found.value == "colocate":
        return {"mode": "both", "sidecar.colocate": True}
    if found.value not in ("both", "train", "explore"):
        raise no_choice(found.value, MODES, "mode")
    return {"mode": found.value}


def meant_mode(value: Any) -> Any:
    """Returns the mode that a value is, or that is near to it."""
    return value if value in MODES else nearest(value, MODES)


def _mode(document: Document) -> Any:
    return meant_mode(document.get("mode"))


def paired(first: Any, second: Any) -> tuple[str, str]:
    """Returns the modes of a pair's files: those that they have where these fit, else those that are meant."""
    if first == "train" or (second == "explore" and first != "explore"):
        return "train", "explore"
    return "explore", "train"


def benched(found: Found) -> Values | str:
    """Translates ``bench_on_latest_checkpoint``."""
    bench = _mode(found.document) == "bench"
    return {"checkpoint": _benched(found.document)} if bench else "nothing is benched"


def memory(found: Found) -> Values | str:
    """Translates ``gpu_memory_utilization``, whose default leaves nothing to a learner on the same GPU."""
    if _mode(found.document) == "colocate" and found.document.given(found.path) is LEFT_OUT:
        return "the learner has half of the GPU"
    return {"sidecar.gpu_memory_utilization": found.value}


def _benched(document: Document) -> str:
    return "latest" if document.get("explorer.bench_on_latest_checkpoint") else "all"


def run_dir(found: Found) -> Values:
    """Translates ``checkpoint_root_dir/project/group/name``."""
    get = found.document.get
    parts = [get("checkpoint_root_dir") or "./checkpoints", get("project"), get("group"), get("name")]
    return {"run_dir": "/".join(str(part).rstrip("/") for part in parts if part)}


def repeat_times(document: Document) -> int:
    """Returns the attempts at a task."""
    return int(document.number(REPEATS, 1))


REPEATS = "algorithm.repeat_times"
_BATCH, _TRAINED, _STEPS = "buffer.batch_size", "buffer.train_batch_size", "buffer.total_steps"


def batch(found: Found) -> Values:
    """Translates ``batch_size × repeat_times = train_batch_size``, which counts experiences; ours are trajectories.

    Of a pair one file may say the first, and the other the second.
    """
    repeats = repeat_times(found.document)
    try:
        tasks, trained = (_written(found.document, path) for path in (_BATCH, _TRAINED))
    except Refusal as refusal:
        raise Refusal(str(refusal), "rollout_batch_size", here={"group_size": repeats}, of=refusal.of) from None
    if trained and not tasks and trained % repeats:
        raise Refusal(
            f"train_batch_size = {trained} is no multiple of repeat_times = {repeats}: a step trains what was explored "
            f"for it; write train_batch_size: batch_size × repeat_times, {repeats} times the explorer's batch_size",
            "rollout_batch_size",
            here={"group_size": repeats},
            of=_TRAINED,
        )
    if tasks and trained and tasks * repeats != trained:
        fitting, key, here = f"train_batch_size: {tasks * repeats}", "rollout_batch_size", {"group_size": repeats}
        if found.document.said(REPEATS) is LEFT_OUT and trained % tasks == 0:
            fitting, key, here = f"repeat_times: {trained // tasks}", "group_size", {"rollout_batch_size": trained}
        raise Refusal(
            f"batch_size × repeat_times = {tasks * repeats} and train_batch_size = {trained}: a step trains what was "
            f"explored for it; write {fitting}",
            key,
            here=here,
            of=_TRAINED,
        )
    return {"rollout_batch_size": trained or (tasks or 1) * repeats, "group_size": repeats}


def _written(document: Document, path: str) -> Any:
    """Returns the number that a file says; None where it says none, or 0."""
    return None if document.get(path) == 0 else document.number(path)


def known_steps(document: Document) -> int | None:
    """Returns ``total_steps``, of either file of a pair, else the whole batches of the epochs; None where the size of
    the data is not known.
    """
    if (steps := document.number(_STEPS)) is not None:
        return int(steps)
    get = document.get
    rows = ROWS.get((str(get(f"{_TASKSET}.path")), get(f"{_TASKSET}.subset_name"), get(f"{_TASKSET}.split", "train")))
    epochs = document.number("buffer.total_epochs", 1)
    each = batch(Found("buffer", None, "", document))["rollout_batch_size"] // repeat_times(document)
    return None if rows is None else int(max(rows * epochs // max(each, 1), 1))


def max_steps(document: Document) -> int:
    """Returns `known_steps`; where they are not known, more than the data have."""
    return known_steps(document) or 10**6


def epochs(found: Found) -> Values:
    """Translates ``total_epochs``; the steps are the whole batches in them."""
    document = found.document
    if document.get(_STEPS) is not None:
        return {"total_epochs": None, "max_steps": max_steps(document)}
    here = {"total_epochs": document.number(found.path)}
    try:
        return here | {"max_steps": max_steps(document)}
    except Refusal as refusal:  # of the batch, without which its epochs have no number of steps
        raise Refusal(str(refusal), "max_steps", here=here, of=refusal.of) from None


def cluster(found: Found) -> Values:
    """Translates ``cluster``: what there is, divided between engines and trainer as Trinity does."""
    document, mode = found.document, _mode(found.document)
    nodes, each = document.number("cluster.node_num", 1), document.number("cluster.gpu_per_node", NODE)
    total = nodes * each
    sequence = document.number("trainer.ulysses_sequence_parallel_size", 1)
    values: dict[str, Any] = {"launcher": "ray"} if nodes > 1 else {}
    if mode in ("explore", "bench"):
        first = max(NODE - each, 0) if nodes == 1 and mode == "explore" else 0
        placed: dict[str, Any] = {"sidecar.devices": _span(first, first + total)}
        if mode == "explore" and _has_hosts(document.other):
            placed = {"sidecar.devices": "gpu", "launcher": "ray"}  # Ray looks for what the hosts leave
        else:
            _apart(document, first, total)
        _fit(document, total, *_ENGINES, here=placed)
        return values | placed
    _fit(document, total - (mode == "both"), "learner.devices" if mode == "both" else "sidecar.devices")
    if mode == "serve":
        end = max(NODE, each) if nodes == 1 else total  # the first are the trainer's
        return values | {"sidecar.devices": _span(end - engine_gpus(document), end)}
    mine = total if mode in ("train", "colocate") else total - engine_gpus(document)
    hosts = -(-mine // each) if nodes > 1 else 1
    if mine < 1 or mine % hosts:
        raise Refusal(
            f"{mine} GPUs are left to the trainer of {nodes} × {each}, and a learner has as many on each node; write "
            "fewer engines or more, or "
            f"--config.learner.devices={_span(0, each)} and --config.learner.mesh.fsdp={each}",
            "learner.devices",
            of="cluster.gpu_per_node",
        )
    if mine % sequence:
        raise Refusal(
            f"{mine} GPUs of the trainer are no multiple of ulysses_sequence_parallel_size={sequence}; write another",
            "learner.devices",
            "learner.mesh.sequence",
            of="trainer.ulysses_sequence_parallel_size",
        )
    values |= {"learner.devices": _span(0, mine), "learner.mesh.fsdp": mine // sequence}
    if hosts > 1:
        values[_HOSTS] = hosts
    theirs = _span(mine, total) if hosts == 1 else "gpu"  # beside a learner of several hosts Ray looks for them
    return values | ({"sidecar.devices": theirs} if mode == "both" else {})


def _has_hosts(trainer: Document | None) -> bool:
    """Returns whether the trainer of a pair has several nodes, where that can be read."""
    with contextlib.suppress(Refusal):
        return trainer is not None and not trainer.alike and trainer.number("cluster.node_num", 1) > 1
    return False


def channel(rule: Rule) -> Rule:
    """Returns the rule of ``sync_method``, as it is for a trainer of several nodes too."""

    def make(found: Found) -> Values | str:
        here = rule.make(found)
        with contextlib.suppress(Refusal):  # of the cluster, which is told of itself
            if here == {"sync_method": "nccl"} and _HOSTS in cluster(Found("cluster", None, "", found.document)):
                return {"sync_method": "checkpoint"}
        return here

    return dataclasses.replace(rule, make=make)


def _apart(document: Document, first: int, total: int) -> None:
    """Refuses an explorer of a pair that has so many GPUs, from the first on, and its trainer one of them too.

    Raises:
        Refusal: an override of ``sidecar.devices`` settles it.
    """
    if document.other is None or document.alike or document.other.get("cluster.node_num", 1) != 1:
        return
    theirs = document.other.get("cluster.gpu_per_node", NODE)
    if isinstance(theirs, int) and first < theirs:
        raise Refusal(
            f"these are {_span(first, first + total)}, and the trainer has {_span(0, theirs)} of one node; start this "
            "file in a shell of its own, on another node, or write fewer, or --config.sidecar.devices and "
            "--config.sidecar.num_engines",
            "sidecar.devices",
            of="cluster.gpu_per_node",
        )


_ENGINES = ("sidecar.num_engines", "sidecar.tensor_parallel_size", "sidecar.devices")
_TAKEN = (f"{_ENGINE}.engine_num", f"{_ENGINE}.tensor_parallel_size")


def _fit(document: Document, room: int, *keys: str, here: Values | None = None) -> None:
    """Refuses engines for which there are too few GPUs; those of a learner beside them take none.

    Raises:
        Refusal: an override of ``keys`` settles it, with ``here``.
    """
    if _mode(document) in ("train", "colocate") or (taken := engine_gpus(document)) <= room:
        return
    given = [path for path in _TAKEN if document.given(path) is not LEFT_OUT]
    of = next(iter([*(path for path in _TAKEN if path in document.overridden), *given]), "cluster.gpu_per_node")
    raise Refusal(
        f"engine_num × tensor_parallel_size = {taken} GPUs, and node_num × gpu_per_node has {room} for engines; write "
        f"fewer, or --config.{' or --config.'.join(dict.fromkeys((_ENGINES[0], keys[0])))}",
        *keys,
        here=here,
        of=of,
    )


def _span(first: int, end: int) -> str:
    return f"gpu:{first}-{end - 1}" if end - first > 1 else f"gpu:{first}"


def engine_gpus(document: Document) -> int:
    """Returns the GPUs of all engines."""
    return int(document.number(f"{_ENGINE}.engine_num", 1) * document.number(f"{_ENGINE}.tensor_parallel_size", 1))


def context(document: Document) -> int:
    """Returns the tokens of the longest trajectory."""
    whole, response = document.number("model.max_model_len"), document.number("model.max_response_tokens")
    return int(whole or (document.number("model.max_prompt_tokens", 2048) + (response or 2048)))


def lengths(found: Found) -> Values:
    """Translates ``max_model_len``, ``max_prompt_tokens`` and ``max_response_tokens``."""
    number, whole = found.document.number, context(found.document)
    response = number("model.max_response_tokens") or max(whole - (number("model.max_prompt_tokens") or whole // 2), 1)
    prompt = number("model.max_prompt_tokens") or whole - response
    if prompt < 1 or prompt + response > whole:
        raise Refusal(
            f"max_model_len={whole} must be above max_response_tokens={response}, with room for the prompt",
            "model.max_prompt_tokens",
            "model.max_response_tokens",
            "sidecar.max_model_len",
            here={"model.max_response_tokens": response},
            of="model.max_model_len",
        )
    return {
        "model.max_prompt_tokens": prompt,
        "model.max_response_tokens": response,
        "sidecar.max_model_len": whole,
    }


def rows(found: Found) -> Values | str:
    """Translates ``max_token_len_per_gpu``: rows in one pass, of all GPUs."""
    document = found.document
    if _mode(document) in ("explore", "bench", "serve"):
        return "nothing is trained"
    sequence = document.number("trainer.ulysses_sequence_parallel_size", 1)
    replicas = cluster(Found("cluster", None, "", document))["learner.mesh.fsdp"]
    try:
        whole = lengths(found)["sidecar.max_model_len"]
    except Refusal as refusal:
        raise Refusal(str(refusal), of=refusal.of) from None
    tokens = document.number("trainer.max_token_len_per_gpu") or -(-2 * whole // sequence)
    if tokens * sequence < whole:
        raise Refusal(
            f"below one sequence of {whole} tokens; write {-(-whole // sequence)} or more, or "
            "--config.learner.rows_per_microbatch",
            "learner.rows_per_microbatch",
            here={"learner.max_tokens_per_row": whole},
            of="trainer.max_token_len_per_gpu",
        )
    return {
        "learner.rows_per_microbatch": tokens * sequence // whole * replicas,
        "learner.max_tokens_per_row": whole,
    }


def concurrency(found: Found) -> Values:
    """Translates ``runner_per_model``: a runner has a task, which is ``repeat_times`` attempts."""
    return {
        "sidecar.max_concurrency": found.document.number("explorer.runner_per_model", 8) * repeat_times(found.document)
    }


def sync_interval(found: Found) -> Values:
    """Translates ``sync_interval``; with ``sync_style: fixed`` its batches are generated beside their training."""
    interval, get = found.document.number("synchronizer.sync_interval", 1), found.document.get
    if get(_STYLE) != "fixed":
        return {"sync_interval": interval}
    offset = get("synchronizer.sync_offset", 0)
    ahead = {"async_generation_ratio": offset} if isinstance(offset, int | float) and offset >= 0 else {}
    return {**ahead, "sync_interval": interval, "fill_interval": interval > 1}


def sync_offset(found: Found) -> Values | str:
    """Translates ``sync_offset``, which ``sync_style: fully_async`` does not read."""
    if found.document.get(_STYLE) == "fully_async":
        return "max_inflight_batches says it"
    return {"async_generation_ratio": found.value}


def in_flight(found: Found) -> Values | str:
    """Translates ``max_inflight_batches``, which ``sync_style: fully_async`` alone reads, and that style."""
    style = found.document.get(_STYLE)
    if style == "fully_async":
        return {"async_generation_ratio": found.document.number("explorer.max_inflight_batches", 2)}
    if style == "fixed":
        return "sync_style is fixed: sync_offset says it"
    raise Refusal(
        "no style leaves staleness unbounded here; write fixed or fully_async, or --config.async_generation_ratio, the "
        "batches ahead",
        "async_generation_ratio",
        of=_STYLE,
    )


_STYLE = "synchronizer.sync_style"


def evaluates(found: Found) -> Values | str:
    """Translates ``eval_interval``: of a run that has something to validate on."""
    listed = found.document.get("buffer.explorer_input.eval_tasksets")
    return {"eval_steps": found.value if listed else None}


def wait_timeout(found: Found) -> Values:
    """Translates ``sync_timeout`` and ``max_read_timeout``: how long any part waits for another."""
    paths = ("synchronizer.sync_timeout", "buffer.trainer_input.experience_buffer.max_read_timeout")
    return {"wait_timeout": float(max(found.document.get(path, 0) or 0 for path in paths))}


def of_both(found: Found) -> str:
    """Translates the interval of one side, which is that of the other too."""
    if found.value in (None, found.document.get("synchronizer.sync_interval", 1)):
        return "sync_interval is of both"
    raise Refusal(
        "explorer and trainer have one interval; write the value of sync_interval, or --config.sync_interval",
        "sync_interval",
    )
