"""Why no vLLM engine starts: one line each, by running the program. Nothing is tried twice."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from program import run, warn_once

from rljax.config.schema import ModelConfig, TinyConfig
from rljax.models.tiny import make_tiny

CONCURRENT = ("sidecar.engine=vllm_async", "wait_timeout=600")


@pytest.mark.parametrize(
    ("stand_in", "cure"),
    [
        ("raise ModuleNotFoundError(\"No module named 'vllm'\", name='vllm')", 'pip install -e ".[vllm]" (GPU)'),
        # a stand-in, as a build for another machine would have to be installed: the text is its loader's
        ("raise ImportError('/venv/vllm/_C.abi3.so: undefined symbol: _ZN3c10')", "build does not fit this machine"),
    ],
    ids=["missing", "of another machine"],
)
def test_a_vllm_that_cannot_be_imported(
    stand_in: str, cure: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path" / "vllm").mkdir(parents=True)
    (tmp_path / "path" / "vllm" / "__init__.py").write_text(stand_in)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    done = run(tmp_path / "run", cache, "sidecar.engine=vllm")
    assert done.returncode == 1, done.stderr
    assert "engine 0 did not start: " in warn_once(done.stderr)
    assert cure in warn_once(done.stderr)


@pytest.mark.vllm
@pytest.mark.ray
def test_a_gpu_that_is_not_there_and_one_that_this_build_cannot_use(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("sidecar.engine=vllm", "sidecar.devices=gpu:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for launcher in ("local", "ray"):
        refused = run(tmp_path / launcher, cache, *asked, f"launcher={launcher}", "ray.address=local")
        assert refused.returncode == 2, refused.stderr
        assert "sidecar.devices='gpu:0': " in warn_once(refused.stderr)
        assert "has 0 GPUs, counted from 0" in warn_once(refused.stderr)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    done = run(tmp_path / "run", cache, *asked, "wait_timeout=600")
    assert done.returncode == 1, done.stderr
    assert "engine 0 did not start: this vLLM build computes on CPUs" in warn_once(done.stderr)


def test_head_sizes_that_vllm_does_not_compute_on_a_cpu(tmp_path: Path, cache: Path) -> None:
    refused = run(tmp_path / "run", cache, "sidecar.engine=vllm", "model.tiny.head_dim=16")
    assert refused.returncode == 2, refused.stderr
    assert "the model's are 16 wide; choose another model, or sidecar.engine=embedded" in warn_once(refused.stderr)


@pytest.mark.vllm
def test_a_model_that_vllm_does_not_know(tmp_path: Path, cache: Path) -> None:
    """Of a family that the learner knows: what it does not know it refuses before any engine is asked."""
    model = make_tiny(ModelConfig(tiny=TinyConfig(head_dim=32)), 0, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["NobodysForCausalLM"]}))
    done = run(tmp_path / "run", cache, "sidecar.engine=vllm", f"model.path={model}", "wait_timeout=600")
    assert done.returncode == 1, done.stderr
    assert "vLLM does not know this model; choose another model.path" in warn_once(done.stderr)
    assert warn_once(done.stderr).endswith("['NobodysForCausalLM'] are not supported for now)")


@pytest.mark.vllm
def test_too_little_memory_for_the_cache_is_said_by_a_core_in_another_process(tmp_path: Path, cache: Path) -> None:
    done = run(tmp_path / "run", cache, *CONCURRENT, "sidecar.kv_cache_gib=1e-5")
    assert done.returncode == 1, done.stderr
    assert "too little memory for the KV cache of one request; raise sidecar.kv_cache_gib" in warn_once(done.stderr)


def test_a_port_that_another_program_has_taken_is_no_cluster(tmp_path: Path, cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(tmp_path / "run", cache, "sidecar.engine=vllm", "launcher=ray", f"ray.address={address}")
    assert done.returncode == 1, done.stderr
    assert f"no Ray cluster answers at {address} (timed out)" in warn_once(done.stderr)
