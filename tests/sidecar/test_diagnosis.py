"""Why an engine did not start, in one line: the texts are vLLM's and PyTorch's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.diagnosis import one_line, read_from, size_of
from sidecar.protocol import EngineError


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("No module named 'vllm'", "vLLM is not installed"),
        ("/x/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab", "does not fit this machine"),
        ("libcudart.so.13: cannot open shared object file: No such file or directory", "does not fit this machine"),
        ("Failed to infer device type, please set the environment variable", "finds none of its devices"),
        ("No CUDA GPUs are available", "finds none of its devices"),
        ("Model architectures ['X'] are not supported for now. Supported architectures: dict_keys([", "not know this"),
        ("Model architectures ['X'] failed to be inspected. Please check the logs", "does not know this model"),
        ("No available memory for the cache blocks. Try increasing", "raise sidecar.kv_cache_gib"),
        (
            "To serve at least one request with the model's max seq len (4097), (2.0 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (1.0 GiB). Based on",
            "raise sidecar.kv_cache_gib",
        ),
        (
            "Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, "
            "71.2 GiB). Decrease GPU memory",
            "its device is taken",
        ),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "its device is taken"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "its device is taken"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "too little memory; lower"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "too little memory; lower"),
        ("[Errno 98] Address already in use", "a port is taken"),
    ],
)
def test_a_cure_is_named_with_the_first_sentence_of_what_was_said(text: str, cure: str) -> None:
    line = one_line("engine 3", RuntimeError(text))
    assert line.startswith("engine 3 did not start: ")
    assert cure in line
    assert line.endswith(f"(RuntimeError: {text.partition('. ')[0]})")


def test_the_reason_of_a_core_in_another_process_is_found_in_what_it_printed(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("(EngineCore pid=7) ERROR 11-22 01:00:00 [core.py:1] ValueError: No available memory for the old\n")
    start = size_of(str(log))
    error = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    front = "(EngineCore pid=8) ERROR 11-22 01:11:11 [core.py:1193] "
    printed = f"{front}EngineCore failed to start.\n{front}Traceback (most recent call last):\n{front}"
    with log.open("a") as file:
        file.write(f"{printed}ValueError: No available memory for the cache blocks. Try increasing more.\n")
    line = one_line("engine 0", error, read_from(str(log), start))
    assert line.endswith("model.max_response_tokens (ValueError: No available memory for the cache blocks)")

    start = size_of(str(log))
    with log.open("a") as file:
        file.write(f"{printed}torch.AcceleratorError: it went wrong. Badly\nSomething: else\n")
    assert one_line("engine 0", error, read_from(str(log), start)) == (
        "engine 0 did not start: torch.AcceleratorError: it went wrong"
    )
    assert one_line("engine 0", error, read_from(str(tmp_path / "none"), size_of(""))) == (
        "engine 0 did not start: RuntimeError: Engine core initialization failed"
    )


def test_what_an_engine_says_of_itself_is_left_alone() -> None:
    assert one_line("engine 0", EngineError("engine 0: no")) == "engine 0: no"
    assert one_line("engine 0", EngineError("another build")) == "engine 0 did not start: another build"
