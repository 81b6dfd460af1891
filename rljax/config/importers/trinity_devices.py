"""Translates Trinity-RFT's cluster: where trainer and engines are, and the rows that its GPUs take."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Rule, Values
from rljax.config.importers.trinity_values import ENGINE, lengths, mode_of

NODE = 8
"""GPUs of a node on which trainer and explorer have a file each: the trainer takes the first, the explorer the last."""
_HOSTS = "learner.hosts.number"


def cluster(found: Found) -> Values:
    """Translates ``cluster``: what there is, divided between engines and trainer as Trinity does."""
    document, mode = found.document, mode_of(found.document)
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
    each_ends = ("learner.devices", "sidecar.devices")
    taken = engine_gpus(document)
    within = {"sidecar.devices": _span(0, taken)} if mode == "both" and taken <= total else {}
    _fit(document, total - (mode == "both"), each_ends[mode != "both"], here=values | within)
    if mode == "serve":
        end = max(NODE, each) if nodes == 1 else total  # the first are the trainer's
        return values | {"sidecar.devices": _span(end - taken, end)}
    mine = total if mode in ("train", "colocate") else total - taken
    hosts = -(-mine // each) if nodes > 1 else 1
    beside = values | ({"sidecar.devices": "gpu"} if mode == "both" and nodes > 1 else {})
    if mine < 1 or mine % hosts:
        raise Refusal(
            f"{mine} GPUs are left to the trainer of {nodes} × {each}, and a learner has as many on each node; write "
            f"fewer engines or more{_or_cut(document, each - each % sequence, sequence)}",
            "learner.devices",
            here=beside,
            of="cluster.gpu_per_node",
        )
    if mine % sequence:
        raise Refusal(
            f"{mine} GPUs of the trainer are no multiple of ulysses_sequence_parallel_size={sequence}; write "
            f"another{_or_cut(document, mine - mine % sequence, sequence)}",
            "learner.devices",
            here=values | ({"sidecar.devices": _span(mine, total)} if mode == "both" and nodes == 1 else {}),
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


def _or_cut(document: Document, gpus: int, sequence: int) -> str:
    """Returns ", or" with the overrides for a learner of so many GPUs of one node, and the rows that it then has in a
    pass; empty where there are none.
    """
    if gpus < 1:
        return ""
    keys = [f"learner.devices={_span(0, gpus)}", f"learner.mesh.fsdp={gpus // sequence}"]
    with contextlib.suppress(Refusal):  # of its lengths, which are told of themselves
        keys.append(f"learner.rows_per_microbatch={_rows(document, gpus // sequence)}")
    return ", or " + " ".join(f"--config.{key}" for key in keys)


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
_TAKEN = (f"{ENGINE}.engine_num", f"{ENGINE}.tensor_parallel_size")


def _fit(document: Document, room: int, *keys: str, here: Values | None = None) -> None:
    """Refuses engines for which there are too few GPUs; those of a learner beside them take none.

    Raises:
        Refusal: an override of ``keys`` settles it, with ``here``.
    """
    if mode_of(document) in ("train", "colocate") or (taken := engine_gpus(document)) <= room:
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
    return int(document.number(f"{ENGINE}.engine_num", 1) * document.number(f"{ENGINE}.tensor_parallel_size", 1))


def rows(found: Found) -> Values | str:
    """Translates ``max_token_len_per_gpu``: rows in one pass, of all GPUs."""
    document = found.document
    if mode_of(document) in ("explore", "bench", "serve"):
        return "nothing is trained"
    try:
        whole = lengths(found)["sidecar.max_model_len"]
    except Refusal as refusal:
        raise Refusal(str(refusal), of=refusal.of) from None
    here = {"learner.max_tokens_per_row": whole}
    try:
        replicas = cluster(Found("cluster", None, "", document))["learner.mesh.fsdp"]
    except Refusal as refusal:  # of the trainer's devices, which its rows do not depend on
        raise Refusal(str(refusal), *refusal.keys, here=here, of=refusal.of) from None
    return {"learner.rows_per_microbatch": _rows(document, replicas), **here}


def _rows(document: Document, replicas: int) -> int:
    """Returns the rows of a pass where so many devices have rows of their own.

    Raises:
        Refusal: one of them has no room for a row.
    """
    sequence = document.number("trainer.ulysses_sequence_parallel_size", 1)
    whole = lengths(Found("model.max_model_len", None, "", document))["sidecar.max_model_len"]
    tokens = document.number("trainer.max_token_len_per_gpu") or -(-2 * whole // sequence)
    if tokens * sequence < whole:
        raise Refusal(
            f"below one sequence of {whole} tokens; write {-(-whole // sequence)} or more, or "
            "--config.learner.rows_per_microbatch",
            "learner.rows_per_microbatch",
            here={"learner.max_tokens_per_row": whole},
            of="trainer.max_token_len_per_gpu",
        )
    return int(tokens * sequence // whole * replicas)
