"""What a plan knows of a model's files: bytes of every tensor, by their headers or by what `config.json` says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from rljax.config.fields import ConfigError
from rljax.config.schema import LoraConfig, ModelConfig
from rljax.models.adapter import init_adapter
from rljax.models.adapter_files import save_adapter
from rljax.models.families.registry import to_config
from rljax.models.hf_names import tensor_shapes
from rljax.pipeline.plan.models import read_models, stored_sizes
from rljax.pipeline.plan.plan import plan
from tests.learner.made_up import ARCHITECTURE
from tests.pipeline.plan.shapes import HALF, estimated

PARAMETERS = 2 * 32 * 32 + 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32 + 2 * 4)


def written(directory: Path, **fields: str) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(to_config(ARCHITECTURE) | fields), encoding="utf-8")
    return ModelConfig(path=str(directory))


def test_tensors_have_the_dtypes_of_their_files(tmp_path: Path) -> None:
    """Norms in float32 beside matrices in bfloat16: a layer has 9216 numbers of these and 72 of those."""
    shapes = tensor_shapes(ARCHITECTURE)
    arrays = {
        name: np.zeros(shape, np.float32 if "norm" in name else ml_dtypes.bfloat16) for name, shape in shapes.items()
    }
    save_file(arrays, tmp_path / "model.safetensors")
    found = stored_sizes(written(tmp_path, dtype="float32"), 0, ARCHITECTURE)
    assert found.keys() == shapes.keys()
    assert found["model.embed_tokens.weight"] == 32 * 32 * 2
    assert found["model.norm.weight"] == 32 * 4
    host = estimated(ARCHITECTURE, {}, 1, 256).host(found)
    assert host["to load the model"] == 2 * (9216 * 2 + 72 * 4)


@pytest.mark.parametrize(
    ("fields", "width"),
    [({"dtype": "bfloat16"}, 2), ({"torch_dtype": "float16"}, 2), ({"torch_dtype": "float32"}, 4), ({}, 4)],
)
def test_without_files_the_config_says_it(tmp_path: Path, fields: dict[str, str], width: int) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "not-here.safetensors"}}')
    found = stored_sizes(written(tmp_path, **fields), 0, ARCHITECTURE)
    assert sum(found.values()) == width * PARAMETERS


def test_the_plan_reads_them(tmp_path: Path) -> None:
    """An embedding of 151,936 words of 896 numbers, 0.25 GiB in bfloat16."""

    def said(dtype: str) -> str:
        (tmp_path / "config.json").write_text(json.dumps(to_config(HALF) | {"dtype": dtype}), encoding="utf-8")
        config = estimated(HALF, {}, 1, 256).config
        lines = plan(replace(config, model=replace(config.model, path=str(tmp_path))))
        return next(line for line in lines if isinstance(line, str) and line.endswith("to load the model")).split()[0]

    assert (said("bfloat16"), said("float32")) == ("0.25", "0.51")


def test_a_plan_refuses_an_adapter_that_the_run_would_refuse(tmp_path: Path) -> None:
    trained = LoraConfig(rank=2, alpha=4.0)
    adapter = jax.tree.map(np.asarray, init_adapter(HALF, trained, 0))
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(to_config(HALF)), encoding="utf-8")
    save_adapter(tmp_path / "adapter", adapter, HALF, trained, str(base))
    config = estimated(HALF, {}, 1, 256).config
    model = replace(config.model, path=str(tmp_path / "adapter"), lora=replace(trained, rank=4))
    with pytest.raises(ConfigError, match=r"model.lora.rank=4: the adapter in .* has 2; write model.lora.rank=2"):
        read_models(replace(config, model=model))
