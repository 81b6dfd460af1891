"""The kinds of engines that ``sidecar.engine`` and ``judges.NAME.engine`` name, and what holds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """Declared properties of a kind of engine; the defaults are what is refused least wrongly of a new one.

    Attributes:
        meaning: for ``--help``.
        in_process: it computes with JAX: with ``launcher=local`` it is a thread of its explorer, on devices that JAX
            sees and may share. Any other has a process of its own, and is given GPUs, or a share of their memory.
        several_devices: one engine may span several (``tensor_parallel_size``).
        own_workers: what computes are further processes of its own, which the channel ``memory`` does not reach.
        half_precision: it computes in fp16 too.
        records_routes: platforms on which it says which experts each token of a model with experts was sent to.
        follows_routes: it scores tokens along experts that it is given.
        penalises: it samples with ``min_p`` and ``repetition_penalty`` too.
        max_adapter_rank: highest rank of the adapters that it holds; None: it takes any.
        package: that it needs, beside what every installation has.
    """

    meaning: str
    in_process: bool = False
    several_devices: bool = False
    own_workers: bool = False
    half_precision: bool = False
    records_routes: tuple[str, ...] = ()
    follows_routes: bool = False
    penalises: bool = False
    max_adapter_rank: int | None = None
    package: str | None = None


MAX_VLLM_RANK = 512
"""Highest rank of an adapter of vLLM 0.32: the last of ``MaxLoRARanks`` of its ``config.lora``."""

ENGINES: Mapping[str, EngineKind] = {
    "embedded": EngineKind(
        meaning="the JAX sampler", in_process=True, records_routes=("cpu", "gpu", "tpu"), follows_routes=True
    ),
    "vllm": EngineKind(
        meaning="stepped in one process",
        half_precision=True,
        records_routes=("cpu",),
        penalises=True,
        max_adapter_rank=MAX_VLLM_RANK,
        package="vllm",
    ),
    "vllm_async": EngineKind(
        meaning="AsyncLLM, in processes of its own",
        several_devices=True,
        own_workers=True,
        half_precision=True,
        records_routes=("gpu",),
        penalises=True,
        max_adapter_rank=MAX_VLLM_RANK,
        package="vllm",
    ),
}


VLLM_LOAD_FORMATS = (
    *("auto", "dummy", "hf", "safetensors", "fastsafetensors", "pt", "npcache", "mistral", "sharded_state"),
    *("tensorizer", "runai_streamer", "runai_streamer_sharded", "instanttensor", "modelexpress", "ipc_cache"),
)
"""``load_format`` of vLLM 0.32: ``_LOAD_FORMAT_TO_MODEL_LOADER`` of its ``model_executor.model_loader``."""


def kinds_with(**properties: bool | None) -> str:
    """Returns the names of the kinds that have these properties, for messages: ``vllm or vllm_async``."""
    return " or ".join(
        name for name, kind in ENGINES.items() if all(getattr(kind, key) == value for key, value in properties.items())
    )
