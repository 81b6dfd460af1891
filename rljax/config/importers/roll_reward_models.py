"""Reward models of ROLL in ours: the worker ``reward`` of RLHF, and domains whose worker is a ``RewardWorker``."""

from __future__ import annotations

from typing import Any

from rljax.config.importers.roll_devices import devices, gpus_of_node, mapped
from rljax.config.importers.roll_values import is_rlvr
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values

WORKER = "RewardWorker"
KEYS = "reward_models.NAME.path reward_models.NAME.dtype reward_models.NAME.devices reward_models.NAME.rows_per_batch"
_CLUSTER = "reward"


def cluster_scores(document: Document) -> bool:
    """Returns whether the worker ``reward`` scores the run: it has devices, and there are no domains."""
    alone = getattr(document, "user", document).given("rewards") is LEFT_OUT
    return alone and is_rlvr(document) and bool(document.get(f"{_CLUSTER}.device_mapping"))


def asked(name: str = _CLUSTER) -> dict[str, Any]:
    """Returns the keys of a taskset that a reward model of that name scores."""
    return {"rewards": ("reward_model",), "reward_args.reward_model.model": name}


def described(document: Document, worker: str, name: str) -> dict[str, Any]:
    """Returns the section of a reward model, ``name``, that stands at ``worker`` in ROLL's file.

    Raises:
        Refusal: it names no model, or a dtype that there is not.
    """
    section = f"reward_models.{name}"
    path = document.get(f"{worker}.model_args.model_name_or_path") or document.get("reward_pretrain")
    if not path:
        raise Refusal(f"write reward_pretrain, or --config.{section}.path=MODEL", f"{section}.path")
    dtype = document.get(f"{worker}.model_args.dtype")
    if dtype not in (None, "fp32", "bf16"):
        raise Refusal(f"dtype={dtype}: a reward model computes in bf16 or fp32", f"{section}.dtype")
    mine = _own_devices(document, worker, f"{section}.devices")
    rows = int(document.number(f"{worker}.infer_batch_size", 16)) * max(len(mine), 1)
    placed = {f"{section}.devices": devices(mine)} if mine else {}
    return {f"{section}.path": path, f"{section}.rows_per_batch": rows, **placed} | (
        {f"{section}.dtype": dtype} if dtype else {}
    )


def _own_devices(document: Document, worker: str, key: str) -> list[int]:
    """Returns the devices that nobody else has, which ``key`` names; none where they are shared, or on another machine
    than the first.
    """
    mine, *others = (mapped(document, role, [], key) for role in (worker, "actor_train", "actor_infer"))
    taken = {number for numbers in others for number in numbers}
    alone = max([*mine, *taken], default=0) < gpus_of_node(document)
    return mine if alone and taken.isdisjoint(mine) else []


def cluster(found: Found) -> Values | str:
    """Translates ``reward``, the worker of RLHF."""
    if not found.value.get("device_mapping"):
        return "without a device_mapping ROLL starts no such worker"
    if not is_rlvr(found.document):
        raise Refusal("environments reward their episodes; leave it out")
    worker = str(found.value.get("worker_cls") or WORKER).rpartition(".")[2]
    if worker != WORKER:
        raise Refusal(
            f"{worker} is not translated; write --config.tasks.train.NAME.rewards=module:function",
            "tasks.train.NAME.rewards",
        )
    return described(found.document, _CLUSTER, _CLUSTER) if cluster_scores(found.document) else "rewards.* say it"


def pretrained(found: Found) -> Values | str:
    """Translates ``reward_pretrain``: the model of the worker ``reward``, where that names none."""
    if cluster_scores(found.document) and not found.document.get(f"{_CLUSTER}.model_args.model_name_or_path"):
        return {f"reward_models.{_CLUSTER}.path": found.value}
    return "the critic begins with the policy's weights, and a domain that reads it says so"
