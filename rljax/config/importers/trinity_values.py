"""Translates what takes more than a name: Trinity-RFT's units and modes in ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rljax.config.importers.published import ROWS
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values, nearest, no_choice

MODES = ("both", "train", "explore", "bench", "colocate", "serve")
_TASKSET = "buffer.explorer_input.taskset"
ENGINE = "explorer.rollout_model"
_LENGTHS = {f"model.max_{part}_tokens": f"model.max_{part}_tokens" for part in ("prompt", "response")}


_OVERRIDDEN: tuple[dict[str, str], ...] = (
    {f"{ENGINE}.engine_num": "sidecar.num_engines"},
    {f"{ENGINE}.tensor_parallel_size": "sidecar.tensor_parallel_size"},
    _LENGTHS,
    {**_LENGTHS, "model.max_model_len": "sidecar.max_model_len"},
    {"trainer.ulysses_sequence_parallel_size": "learner.mesh.sequence"},
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


def mode_of(document: Document) -> Any:
    """Returns the mode that a file has, or that is near to it."""
    return meant_mode(document.get("mode"))


def paired(first: Any, second: Any) -> tuple[str, str]:
    """Returns the modes of a pair's files: those that they have where these fit, else those that are meant."""
    if first == "train" or (second == "explore" and first != "explore"):
        return "train", "explore"
    return "explore", "train"


def benched(found: Found) -> Values | str:
    """Translates ``bench_on_latest_checkpoint``."""
    bench = mode_of(found.document) == "bench"
    return {"checkpoint": _benched(found.document)} if bench else "nothing is benched"


def memory(found: Found) -> Values | str:
    """Translates ``gpu_memory_utilization``, whose default leaves nothing to a learner on the same GPU."""
    if mode_of(found.document) == "colocate" and found.document.given(found.path) is LEFT_OUT:
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
