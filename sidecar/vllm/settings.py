"""Settings of a vLLM engine, in plain data that any process may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.extras import install_vllm
from sidecar.protocol import EngineError

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""vLLM's name of a dtype, by its config name."""
LEAST_BATCHED_TOKENS = 4096
"""Tokens that an engine on the CPU reads in one step, at least."""
STAGE_SECONDS = 0.1
"""Seconds between two steps, at least about, in which a part of a version is loaded beside the one in use. The more,
the longer running requests wait for their next token, and the sooner the version is in use.
"""
LOADER = "sidecar.vllm.weights.WeightLoader"
"""Worker extension: the class that vLLM mixes into its workers."""
CONNECTORS = ("kv_transfer_config", "kv_offloading_size")
"""Arguments of ``EngineArgs`` that make a connector, which keeps keys and values outside of vLLM's own cache."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for: ``MaxLoRARanks`` of its ``config.lora``. An adapter may be of a lower one."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """Settings of a vLLM engine. Weights are dummies until the first version: the run decides them, not the directory;
    but where versions are adapters of the directory's.

    Attributes:
        model: directory with ``config.json`` and tokenizer, as Hugging Face writes it.
        max_length: longest prompt and response together, in tokens.
        slots: requests that run at once.
        dtype: ``fp32``, ``bf16`` or ``fp16``, of computation and KV cache.
        tensor_parallel_size: devices that one engine spans.
        gpu_memory_utilization: fraction of a GPU's memory for weights and KV cache.
        kv_cache_bytes: memory of the KV cache; None lets vLLM take what `gpu_memory_utilization` leaves.
        enforce_eager: no CUDA graphs and no compilation.
        enable_prefix_caching: requests with a common prefix share its KV.
        load_format: of the weights that it starts with.
        block_size: tokens in a block of the KV cache; None for vLLM's choice.
        seed: of requests that bring none; all of ours do.
        positions: of the model; None if it has enough.
        accelerator: whether the engine computes on GPUs or TPU chips, and not on the CPU.
        nccl: take the weights of ``nccl://`` addresses from GPU to GPU, by vLLM's own transfer engine.
        held: versions that are in use at once, each an adapter; 0: one at a time, whole.
        rank: of these adapters.
        adapted: the matrices that have one, by the last word of their names.
        record_routes: completions say which experts each token was sent to.
        double_buffer: on a CPU a version is loaded beside the one in use, between steps: for a model's memory more.
        engine_args: further arguments of vLLM's ``EngineArgs``, by name.
    """

    model: str
    max_length: int
    slots: int
    dtype: str = "bf16"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    kv_cache_bytes: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    load_format: str = "dummy"
    block_size: int | None = None
    seed: int = 0
    positions: int | None = None
    accelerator: bool = False
    nccl: bool = False
    held: int = 0
    rank: int = 0
    adapted: tuple[str, ...] = ()
    record_routes: bool = False
    double_buffer: bool = True
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stages(self) -> bool:
        """True where versions are loaded beside the one in use, if the model's kind allows it."""
        return self.double_buffer and not self.accelerator and not self.held

    def arguments(self, *, on_cpu: bool, stepped: bool = False) -> dict[str, Any]:
        """Returns the arguments of ``EngineArgs``; ``on_cpu`` says whether the installed vLLM computes on CPUs, and
        ``stepped`` whether every step is asked for, and has to end with its tokens known.

        Raises:
            EngineError: the engine needs an accelerator, or `engine_args` has an argument that rljax sets itself.
        """
        if on_cpu and self.accelerator:
            raise EngineError(
                "this vLLM build computes on CPUs, and an accelerator is asked for; uninstall it and install the one "
                f"for the device: {install_vllm()}, or set sidecar.devices=cpu"
            )
        ours: dict[str, Any] = {
            "model": self.model,
            # Scoring a sequence of that length samples one token more, where the model has a position for it.
            "max_model_len": min(self.max_length + 1, self.positions or self.max_length + 1),
            "max_num_seqs": self.slots + 1,  # one slot more, so that the parity probe never queues
            "dtype": DTYPES[self.dtype],
            "tensor_parallel_size": self.tensor_parallel_size,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "enforce_eager": self.enforce_eager,
            "enable_prefix_caching": self.enable_prefix_caching,
            "load_format": self.load_format,
            "block_size": self.block_size,
            "seed": self.seed,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # the run's sampling parameters hold, not those of the model's directory
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": LOADER,
            "disable_log_stats": True,
            "stream_interval": 1,  # what a step has sampled comes with it, while its version and its experts are known
        }
        if stepped:
            ours["async_scheduling"] = False
        if on_cpu:
            # Where a prompt is cut, vLLM takes back the random number that was drawn for its first part, and a CPU's
            # generator cannot: the engine would die of it ("CPU Generator does not use offset").
            batched = max(LEAST_BATCHED_TOKENS, self.max_length + 1)
            ours |= {"enable_chunked_prefill": False, "max_num_batched_tokens": batched}
        if self.nccl:
            ours["weight_transfer_config"] = {"backend": "nccl"}
        if self.held:
            ours |= {"enable_lora": True, "max_loras": self.held, "max_cpu_loras": self.held}
            ours |= {"max_lora_rank": min(rank for rank in RANKS if rank >= self.rank)}
            ours |= {"lora_target_modules": list(self.adapted)}
            ours |= {"load_format": "auto" if self.load_format == "dummy" else self.load_format}
        if self.record_routes and not on_cpu:  # on a CPU `sidecar.vllm.routes` records them
            ours["enable_return_routed_experts"] = True
        if self.tensor_parallel_size > 1:
            ours["distributed_executor_backend"] = "mp"  # in a Ray actor vLLM would ask Ray for more of its own
        self._check_connector()
        other = {name for name, value in self.engine_args.items() if name in ours and ours[name] != value}
        if overruled := sorted(other - {"worker_extension_cls"}):
            raise EngineError(
                f"sidecar.engine_args: {', '.join(overruled)} cannot be overruled: what is recorded of tokens and "
                "versions depends on it, or it has a key of its own in sidecar"
            )
        return {**ours, **self.engine_args}

    def _check_connector(self) -> None:
        given = [name for name in CONNECTORS if self.engine_args.get(name) is not None]
        if not given:
            return
        brings = f"sidecar.engine_args: {' and '.join(given)} may bring keys and values"
        if self.held:
            raise EngineError(
                f"{brings} of another version; leave it out, or write another sidecar.update_policy than pin"
            )
        if self.record_routes:
            raise EngineError(
                f"{brings} without the experts that made them; leave it out, or write algorithm.router_replay=off"
            )


def environment(*, cpu_threads: int | None = None, multiprocessing: bool) -> dict[str, str]:
    """Returns the environment variables of an engine's process, to be set before vLLM is imported.

    Args:
        cpu_threads: OpenMP threads of an engine on the CPU; None for an accelerator.
        multiprocessing: whether `LLMEngine` has its core in another process; that of `AsyncLLM` always is. On a CPU
            also whether a lone worker has one, for the sake of threads that vLLM binds; here nothing is bound, and the
            process would cost an import of vLLM.
    """
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocessing)),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu_threads is not None:
        # Threads that vLLM pins by itself would all sit on the same cores as those of the other engines.
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(cpu_threads)}
        variables |= {"TORCH_COMPILE_DISABLE": "1"}
    return variables
