"""Keys of the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljax.config.engines import ENGINES, VLLM_LOAD_FORMATS
from rljax.config.fields import key
from rljax.config.generating import GeneratingConfig


@dataclass(frozen=True, kw_only=True)
class SidecarConfig:
    """The engines."""

    engine: str = key(
        "embedded", "; ".join(f"{name}: {kind.meaning}" for name, kind in ENGINES.items()), choices=tuple(ENGINES)
    )
    num_engines: int = key(1, "engines of each explorer", low=1)
    devices: str = key(
        "auto",
        "like learner.devices, and not the learner's own unless it is the only one or colocate is set; cpu:N of an "
        "engine in another process is a core",
    )
    colocate: bool = key(
        False, "on the learner's accelerators; from another process with a share of each GPU: gpu_memory_utilization"
    )
    max_concurrency: int = key(64, "requests that one engine runs at once", low=1)
    decode_steps: int = key(8, "embedded: tokens sampled between looks at the queue", low=1)
    dtype: str = key(
        "auto", "of computation and cache; auto: model.dtype; fp16: vllm", choices=("auto", "fp32", "bf16", "fp16")
    )
    max_model_len: int | None = key(None, "context of an engine; None: longest prompt plus response", low=2)
    update_policy: str = key(
        "in_flight",
        "requests at an update: go on with it (in_flight; keep_kv: unread), end first (drain), are resent (abort), "
        "keep theirs (pin)",
        choices=("in_flight", "keep_kv", "drain", "abort", "pin"),
    )
    tensor_parallel_size: int = key(1, "vllm_async: accelerators of one engine", low=1)
    gpu_memory_utilization: float | None = key(
        None, "vllm: share of a GPU's memory; None: 0.9, with colocate 0.4", low=0, high=1, low_open=True
    )
    kv_cache_gib: float | None = key(
        None, "vllm: memory of the KV cache; None: what is left of the GPU, on a CPU what max_concurrency needs", low=0
    )
    cpu_threads: int | None = key(None, "threads of an engine on the CPU; None: cores but one, shared by all", low=1)
    enforce_eager: bool = key(False, "vllm: no CUDA graphs, no compilation; always so on a CPU")
    enable_prefix_caching: bool = key(True, "vllm: requests with a common prefix share its KV")
    double_buffer: bool = key(
        True,
        "vllm on a CPU: load a version between steps, beside the one in use; takes memory for both",
    )
    load_format: str = key(
        "dummy", "vllm: what an engine starts with, before its first version", choices=VLLM_LOAD_FORMATS
    )
    block_size: int | None = key(None, "vllm: tokens in a block of the KV cache; None: vLLM's choice", low=1)
    seed: int | None = key(
        None, "vllm: seed of the engine; None: the run's. Requests bring their own", low=0, high=2**31 - 1
    )
    engine_args: Mapping[str, Any] = key({}, "vllm: further arguments of EngineArgs, by name")
    generating_args: GeneratingConfig = field(default_factory=GeneratingConfig)
    val_generating_args: GeneratingConfig = field(default_factory=lambda: GeneratingConfig(temperature=0.0))
