"""Translates ROLL's devices: where the learner and the engines are, and how a replica is cut."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rljax.config.importers.rule import Document, Found, Refusal, Values

_RANGE = re.compile(r"list\(\s*range\(\s*(\d{1,4})\s*(?:,\s*(\d{1,4})\s*)?(?:,\s*(\d{1,3})\s*)?\)\s*\)")
_LIST = re.compile(r"\[\s*(\d{1,4}(?:\s*,\s*\d{1,4})*)?\s*,?\s*\]")
_NO_DEVICES = "write list(range(0,4)), [0, 1, 2, 3] or a sum of such"
_MEGATRON = "actor_train.strategy_args.strategy_config"
_TENSOR = "tensor_model_parallel_size"
_CUTS = (
    *(f"{_MEGATRON}.{name}" for name in (_TENSOR, "context_parallel_size", "pipeline_model_parallel_size")),
    "actor_train.model_args.ulysses_size",
)
"""Sizes whose product is the devices of a replica of the learner."""
_TRAINED, _GENERATED = "actor_train.device_mapping", "actor_infer.device_mapping"
EXPERT = "learner.mesh.expert"
_HALF = 0.5
"""Share of a GPU that JAX takes of one that engines are on too."""


def indices(value: Any) -> list[int]:
    """Returns the devices that a ``device_mapping`` names; it is parsed, never evaluated.

    Raises:
        Refusal: it is neither a list, nor a range, nor a sum of such; or it names a device twice.
    """
    found = _listed(value) if isinstance(value, list) else _summed(value)
    if not found:
        raise Refusal(f"names no device; {_NO_DEVICES}")
    if twice := [number for number, times in Counter(found).items() if times > 1]:
        raise Refusal(f"names GPU {twice[0]} twice; {_NO_DEVICES}")
    return sorted(found)


def _listed(value: Sequence[Any]) -> list[int]:
    if not all(type(item) is int and 0 <= item < 10**4 for item in value):
        raise Refusal(_NO_DEVICES)
    return list(value)


def _summed(value: Any) -> list[int]:
    found: list[int] = []
    for part in value.split("+") if isinstance(value, str) and len(value) < 1000 else [""]:
        if ranged := _RANGE.fullmatch(part.strip()):
            first, last, step = ranged.groups()
            low, high = (0, int(first)) if last is None else (int(first), int(last))
            if not (every := int(step or 1)):
                raise Refusal(_NO_DEVICES)
            found += range(low, high, every)
        elif listed := _LIST.fullmatch(part.strip()):
            found += (int(item) for item in (listed[1] or "").split(",") if item.strip())
        else:
            raise Refusal(_NO_DEVICES)
    return found


def devices(numbers: Sequence[int]) -> str:
    """Returns ``gpu:0-3,6`` for the indices."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][-1] = number
        else:
            spans.append([number, number])
    return "gpu:" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)


def mapped(document: Document, role: str, otherwise: list[int], *keys: str) -> list[int]:
    """Returns the devices of a worker, or ``otherwise`` where the file names none.

    Raises:
        Refusal: they cannot be read; an override of ``keys`` settles what needs them.
    """
    found = document.get(f"{role}.device_mapping")
    try:
        return indices(found) if found is not None else otherwise
    except Refusal as refusal:
        raise Refusal(str(refusal), *keys, of=f"{role}.device_mapping") from None


def _train_devices(document: Document) -> list[int]:
    return mapped(document, "actor_train", [0], "learner.devices")


def replicas(document: Document) -> int:
    """Returns the data-parallel size of the learner: its devices over those of a replica.

    Raises:
        Refusal: they do not divide.
    """
    cut = _cut(document)
    world, taken = len(_train_devices(document)), math.prod(cut.values())
    if world % taken:
        sizes = " × ".join(f"{path.rpartition('.')[2]}={size}" for path, size in cut.items() if size > 1)
        raise Refusal(
            f"{_devices(world)} no multiple of the {taken} that a replica takes ({sizes}); write other devices, or "
            "other sizes",
            "learner.devices",
            of=_TRAINED,
        )
    return world // taken


def _cut(document: Document) -> dict[str, int]:
    """Returns over how many devices each of `_CUTS` cuts a replica."""
    return {path: document.number(path, 1) or 1 for path in _CUTS}


def _devices(number: int) -> str:
    return "1 device is" if number == 1 else f"{number} devices are"


def experts(found: Found) -> Values | str:
    """Translates ``expert_model_parallel_size``: as there, experts are cut over devices that have rows of their own.

    Raises:
        Refusal: it does not divide them.
    """
    if found.value in (None, 1):
        return "dense models have no experts"
    whole = replicas(found.document)
    if not isinstance(found.value, int) or found.value < 1 or whole % found.value:
        raise Refusal(f"does not divide the {whole} devices that have rows of their own; write another", EXPERT)
    return {EXPERT: found.value}


def learner_devices(found: Found) -> Values:
    """Translates ``actor_train.device_mapping``: devices, their hosts, and the mesh axis that is left of them."""
    placed = _placed(found.document)
    whole = replicas(found.document) // (found.document.number(f"{_MEGATRON}.expert_model_parallel_size", 1) or 1)
    shards = found.document.get(f"{_MEGATRON}.fsdp_size", 1)
    if not 1 < shards < whole:  # as there: all of them
        return placed | {"learner.mesh.fsdp": whole}
    if whole % shards:
        raise Refusal(
            f"fsdp_size={shards} does not divide {whole} devices; write another",
            "learner.mesh.fsdp",
            of=f"{_MEGATRON}.fsdp_size",
        )
    return placed | {"learner.mesh.fsdp": shards, "learner.mesh.data": whole // shards}


def _placed(document: Document) -> dict[str, Any]:
    """Returns the learner's devices: by their number on its node, or, on several, counted over all of these."""
    numbers, node = _train_devices(document), gpus_of_node(document)
    each = Counter(number // node for number in numbers)
    if len(each) == 1:
        return {"learner.devices": devices([number % node for number in numbers])}
    if len(set(each.values())) > 1:
        mesh, left = divmod(node, math.prod(_cut(document).values()))
        rows = mesh * document.number("actor_train.training_args.per_device_train_batch_size", 1)
        as_many = (
            "a --config.learner.mesh of as many, with its rows_per_microbatch"
            if left
            else f"--config.learner.mesh.fsdp={mesh} and --config.learner.rows_per_microbatch={rows}"
        )
        raise Refusal(
            f"{' and '.join(map(str, each.values()))} GPUs are on {len(each)} nodes of {node} (num_gpus_per_node), and "
            f"a learner has as many on each; write others, or --config.learner.devices=gpu:0-{node - 1} and {as_many}",
            "learner.devices",
            of=_TRAINED,
        )
    return {
        "learner.devices": devices(range(len(numbers))),
        "learner.hosts.number": len(each),
        "launcher": "ray",
    }


def engines(found: Found) -> Values:
    """Translates ``actor_infer.device_mapping``: where engines are, and how many."""
    document = found.document
    numbers, each, node = _engine_devices(document), engine_gpus(document), gpus_of_node(document)
    if len(numbers) % each:
        raise Refusal(
            f"{_devices(len(numbers))} no multiple of the {each} of an engine; write others",
            "sidecar.devices",
            of=_GENERATED,
        )
    placed: dict[str, Any] = {"sidecar.devices": devices(numbers), "sidecar.num_engines": len(numbers) // each}
    try:
        mine, learner = set(_train_devices(document)), _placed(document)
    except Refusal as refusal:
        elsewhere = {"launcher": "ray"} if max(numbers) >= node else {}
        raise Refusal(str(refusal), *refusal.keys, here=placed | elsewhere, of=refusal.of) from None
    both, homes = sorted(mine & set(numbers)), sorted({number // node for number in mine})
    if "learner.hosts.number" in learner:
        return _beside_hosts(both, placed)
    if both and not mine.issuperset(numbers):
        raise Refusal(
            f"{devices(both)} are of {_TRAINED} too, and the others are not; write devices that are all the "
            "learner's, or none",
            "sidecar.devices",
            "learner.devices",
            here=placed,
        )
    if both:
        return placed | {"sidecar.devices": devices([number % node for number in numbers]), "sidecar.colocate": True}
    swapped = {0: homes[0], homes[0]: 0}  # the learner's node is the first
    numbers = sorted(swapped.get(number // node, number // node) * node + number % node for number in numbers)
    return placed | {"sidecar.devices": devices(numbers)} | ({"launcher": "ray"} if max(numbers) >= node else {})


def _beside_hosts(both: Sequence[int], placed: Values) -> Values:
    """Returns engines beside a learner of several nodes: Ray looks for their GPUs."""
    if both:
        raise Refusal(
            f"{devices(both)} are of {_TRAINED} too, and a learner of several nodes shares none of its GPUs; write "
            "none of the learner's, or --config.sidecar.devices=gpu for any that the cluster has besides",
            "sidecar.devices",
            here={key: value for key, value in placed.items() if key != "sidecar.devices"},
        )
    return {**placed, "sidecar.devices": "gpu"}


def memory(found: Found) -> Values:
    """Translates the memory of an engine, which on the learner's GPUs is at most what that leaves."""
    said = {"sidecar.gpu_memory_utilization": found.value}
    try:
        shared = set(_train_devices(found.document)).issuperset(_engine_devices(found.document))
    except Refusal:
        return said  # whether they share a GPU is not known
    if shared and isinstance(found.value, float) and found.value > 1 - _HALF:
        raise Refusal(
            f"{_GENERATED} has the GPUs of {_TRAINED}, and the learner takes {_HALF} of each; write 0.4, or "
            "--config.learner.gpu_memory_utilization",
            "sidecar.gpu_memory_utilization",
            "learner.gpu_memory_utilization",
            "sidecar.devices",
            here=said,
        )
    return said


def gpus_of_node(document: Document) -> int:
    """Returns how many GPUs a node has."""
    return int(document.number("num_gpus_per_node", 8))


def node(found: Found) -> str:
    """Translates ``num_gpus_per_node``, which a ``device_mapping`` alone is read by."""
    try:
        gpus_of_node(found.document)
    except Refusal as refusal:
        raise Refusal(str(refusal), "learner.devices", "sidecar.devices") from None
    return "GPUs of a node: device_mapping is read by it"


def _engine_devices(document: Document) -> list[int]:
    return mapped(document, "actor_infer", [0], "sidecar.devices")


def engine_gpus(document: Document) -> int:
    """Returns the devices of one engine."""
    config, names = "actor_infer.strategy_args.strategy_config", ("tensor_parallel_size", "tp_size", _TENSOR)
    said = [document.number(f"{config}.{name}") for name in names]
    return int(next(filter(None, said), document.number("actor_infer.num_gpus_per_worker", 1)))
