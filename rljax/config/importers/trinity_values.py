"""Translates what takes more than a name: Trinity-RFT's units, devices and algorithms in ours."""

from __future__ import annotations

from typing import Any

from rljax.config.importers.published import ROWS
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values

NODE = 8
"""GPUs of a node on which trainer and explorer have a file each: the trainer takes the first, the explorer the last."""
_TASKSET = "buffer.explorer_input.taskset"
_ENGINE = "explorer.rollout_model"


def mode(found: Found) -> Values:
    """Translates ``mode``; Trinity's server takes over what is trained beside it."""
    if found.value == "serve":
        return {"mode": "serve", "serve.follow": True}
    if found.value == "bench":
        return {"mode": "evaluate", "checkpoint": _benched(found.document)}
    if found.value == "colocate":
        return {"mode": "both", "sidecar.colocate": True}
    if found.value not in ("both", "train", "explore"):
        raise Refusal("not one of both, train, explore, bench, colocate, serve; write --config.mode", "mode")
    return {"mode": found.value}


def benched(found: Found) -> Values | str:
    """Translates ``bench_on_latest_checkpoint``."""
    bench = found.document.get("mode") == "bench"
    return {"checkpoint": _benched(found.document)} if bench else "nothing is benched"


def memory(found: Found) -> Values | str:
    """Translates ``gpu_memory_utilization``, whose default leaves nothing to a learner on the same GPU."""
    if found.document.get("mode") == "colocate" and found.document.given(found.path) is LEFT_OUT:
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
    return int(document.number("algorithm.repeat_times", 1))


def batch(found: Found) -> Values:
    """Translates ``batch_size × repeat_times = train_batch_size``, which counts experiences; ours are trajectories."""
    tasks, trained = found.document.given("buffer.batch_size"), found.document.given("buffer.train_batch_size")
    repeats = repeat_times(found.document)
    trained = None if trained in (LEFT_OUT, None, 0) else found.document.number("buffer.train_batch_size")
    tasks = None if tasks in (LEFT_OUT, None) else found.document.number("buffer.batch_size")
    if tasks and trained and tasks * repeats != trained:
        raise Refusal(
            f"batch_size × repeat_times = {tasks * repeats} and train_batch_size = {trained}: a step trains what was "
            f"explored for it; write train_batch_size: {tasks * repeats}",
            "rollout_batch_size",
        )
    return {"rollout_batch_size": trained or (tasks or 1) * repeats, "group_size": repeats}


def known_steps(document: Document) -> int | None:
    """Returns ``total_steps``, else the whole batches of the epochs; None where the size of the data is not known."""
    if (steps := document.number("buffer.total_steps")) is not None:
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
    if found.document.get("buffer.total_steps") is not None:
        return {"total_epochs": None, "max_steps": max_steps(found.document)}
    return {"total_epochs": found.value, "max_steps": max_steps(found.document)}


def cluster(found: Found) -> Values:
    """Translates ``cluster``: what there is, divided between engines and trainer as Trinity does."""
    document, mode = found.document, found.document.get("mode")
    nodes, each = document.number("cluster.node_num", 1), document.number("cluster.gpu_per_node", NODE)
    total, taken = nodes * each, engine_gpus(document)
    sequence = document.number("trainer.ulysses_sequence_parallel_size", 1)
    values: dict[str, Any] = {"launcher": "ray"} if nodes > 1 else {}
    if mode == "explore":
        first = max(NODE - each, 0) if nodes == 1 else 0
        return values | {"sidecar.devices": _span(first, first + total)}
    if mode == "serve":
        end = max(NODE, each) if nodes == 1 else total  # the first are the trainer's
        return values | {"sidecar.devices": _span(end - taken, end)}
    if mode == "bench":
        return values | {"sidecar.devices": _span(0, total)}
    mine = total if mode in ("train", "colocate") else total - taken
    if mine < 1 or (mine > each and nodes > 1):
        raise Refusal(
            f"{mine} GPUs are left to the trainer of {nodes} × {each}, and a learner is on one node; write "
            "--config.learner.devices=gpu:0-7 and learner.mesh.fsdp",
            "learner.devices",
        )
    if mine % sequence:
        raise Refusal(f"{mine} GPUs of the trainer are no multiple of ulysses_sequence_parallel_size; write another")
    values |= {"learner.devices": _span(0, mine), "learner.mesh.fsdp": mine // sequence}
    return values | ({"sidecar.devices": _span(mine, total)} if mode == "both" else {})


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
        raise Refusal(f"max_model_len={whole} must be above max_response_tokens={response}, with room for the prompt")
    return {
        "model.max_prompt_tokens": prompt,
        "model.max_response_tokens": response,
        "sidecar.max_model_len": whole,
    }


def rows(found: Found) -> Values | str:
    """Translates ``max_token_len_per_gpu``: rows in one pass, of all GPUs."""
    document = found.document
    if document.get("mode") in ("explore", "bench", "serve"):
        return "nothing is trained"
    sequence = document.number("trainer.ulysses_sequence_parallel_size", 1)
    replicas = cluster(Found("cluster", None, "", document))["learner.mesh.fsdp"]
    whole = context(document)
    tokens = document.number("trainer.max_token_len_per_gpu") or -(-2 * whole // sequence)
    return {
        "learner.max_tokens_per_row": whole,
        "learner.rows_per_microbatch": max(tokens * sequence // whole, 1) * replicas,
    }


def concurrency(found: Found) -> Values:
    """Translates ``runner_per_model``: a runner has a task, which is ``repeat_times`` attempts."""
    return {
        "sidecar.max_concurrency": found.document.number("explorer.runner_per_model", 8) * repeat_times(found.document)
    }


def synchronisation(found: Found) -> Values:
    """Translates ``sync_interval``, ``sync_offset`` and ``sync_style``."""
    get = found.document.get
    style, interval = get("synchronizer.sync_style", "fixed"), found.document.number("synchronizer.sync_interval", 1)
    if style == "fixed":
        offset = get("synchronizer.sync_offset", 0)
        return {"async_generation_ratio": offset, "sync_interval": interval, "fill_interval": interval > 1}
    if style == "fully_async":
        ahead = found.document.number("explorer.max_inflight_batches", 2)
        return {"async_generation_ratio": ahead, "sync_interval": interval}
    raise Refusal(
        "no style leaves staleness unbounded here; write fixed or fully_async, or --config.async_generation_ratio, the "
        "batches ahead",
        "async_generation_ratio",
    )


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
