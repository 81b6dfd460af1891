"""Versions that hold an adapter alone: what engines make of them, against PEFT's own models."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rljax.config.model import LoraConfig
from rljax.models.adapter import adapter_by_name
from rljax.models.files import load_architecture, stored_tensors
from rljax.sampler.adapted import Below
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.adapters import whole_version
from sidecar.channels.files import read_version
from sidecar.channels.versions import AdapterInfo, VersionError
from sidecar.fingerprint import fingerprint
from sidecar.protocol import WeightUpdate, WeightUpdateError
from tests.models.hf_models import reference_logits, tokens
from tests.models.test_adapter import adapted_by_peft, loaded

CASES: dict[str, tuple[str, LoraConfig]] = {
    "all-linear": ("qwen3", LoraConfig(rank=4, alpha=8.0)),
    "two targets": ("qwen2", LoraConfig(rank=3, alpha=5.0, targets=("q_proj", "down_proj"))),
}


def published(directory: Path, name: str, lora: LoraConfig) -> tuple[Any, Path]:
    """A model of PEFT's in float32, and its adapter as a version; the base lies beside it."""
    model = adapted_by_peft(directory, name, lora)
    architecture, _, adapter = loaded(directory, lora)
    info = AdapterInfo(fingerprint(stored_tensors(directory / "base")), "fp32", lora.scale)
    tensors = adapter_by_name(jax.tree.map(np.asarray, adapter), architecture, lora)
    path = OrbaxPublisher(directory / "weights").publish(1, 1, tensors, model="", dtype="fp32", adapter=info)
    return model, Path(path)


def logprobs(model: Any, ids: np.ndarray) -> np.ndarray:
    table = torch.log_softmax(torch.from_numpy(reference_logits(model, ids[None])[0]), -1).numpy()
    return table[np.arange(len(ids) - 1), ids[1:]]


def engine_of(directory: Path) -> EmbeddedEngine:
    settings: dict[str, Any] = {"slots": 2, "max_length": 64, "decode_steps": 4, "dtype": np.float32}
    return EmbeddedEngine(load_architecture(directory), below=Below(directory), **settings)


@pytest.mark.parametrize("case", CASES)
def test_the_engine_computes_with_an_adapter_on_its_base(case: str, tmp_path: Path) -> None:
    name, lora = CASES[case]
    model, path = published(tmp_path, name, lora)
    ids = tokens(1, 24)[0]
    version = read_version(path)
    info = version.manifest.adapter
    assert info == AdapterInfo(fingerprint(stored_tensors(tmp_path / "base")), "fp32", lora.scale)
    without = dataclasses.replace(info, scale=0.0)
    publisher = OrbaxPublisher(tmp_path / "weights")
    unchanged = publisher.publish(2, 1, version.tensors, model="", dtype="fp32", adapter=without)

    async def main() -> tuple[np.ndarray, np.ndarray, bool]:
        engine = engine_of(tmp_path / "base")
        try:
            await engine.update_weights(WeightUpdate(1, 1, str(path)))
            adapted, table = await engine.score(ids), engine._batch.params["embedding"]
            await engine.update_weights(WeightUpdate(2, 1, unchanged))
            return adapted, await engine.score(ids), engine._batch.params["embedding"] is table
        finally:
            await engine.close()

    adapted, base, same_base = asyncio.run(main())
    assert same_base
    np.testing.assert_allclose(adapted, logprobs(model, ids), atol=1e-4)
    with model.disable_adapter():
        np.testing.assert_allclose(base, logprobs(model, ids), atol=1e-4)
    assert np.abs(adapted - base).max() > 0.1


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    name, lora = CASES["all-linear"]
    _, path = published(tmp_path / "ours", name, lora)
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "ours" / "base", other)
    tensors = {key: np.asarray(tensor) + 1 for key, tensor in stored_tensors(other).items()}
    save_file(tensors, other / "model.safetensors")

    async def main() -> None:
        engine = engine_of(other)
        try:
            await engine.update_weights(WeightUpdate(1, 1, str(path)))
        finally:
            await engine.close()

    with pytest.raises(WeightUpdateError, match=f"an adapter of another model .* than that in {other}"):
        asyncio.run(main())
    with pytest.raises(VersionError, match="another model"):
        whole_version(read_version(path), stored_tensors(other), str(other))


@pytest.mark.parametrize("case", CASES)
def test_merged_on_the_host_it_is_what_peft_merges(case: str, tmp_path: Path) -> None:
    name, lora = CASES[case]
    model, path = published(tmp_path, name, lora)
    whole = whole_version(read_version(path), stored_tensors(tmp_path / "base"), "")
    theirs = {key: p.detach().numpy() for key, p in model.merge_and_unload().named_parameters()}
    assert whole.manifest.adapter is None
    for key, tensor in whole.tensors.items():
        np.testing.assert_allclose(tensor, theirs[key], atol=1e-5, err_msg=key)
