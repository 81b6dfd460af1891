"""A learner of one device whose frozen weights are each layer's by themselves, as engines of the device have them."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.schema import CriticConfig, KlConfig, LoraConfig, MeshConfig
from rljax.learner.learner import Learner
from rljax.learner.sharding import make_mesh, parameter_shardings
from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.params import Params
from rljax.models.families.registry import FAMILIES
from rljax.models.files import load_architecture, stored_tensors
from rljax.models.frozen import abstract_frozen, read_frozen
from rljax.models.hf_names import from_hf, place_hf, to_hf
from rljax.models.tiny import make_tiny
from rljax.models.transformer import abstract_params
from rljax.pipeline.assemble.learner import frozen_base
from rljax.sampler.adapted import Below
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import WeightUpdate
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error

pytestmark = pytest.mark.slow

CASES: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "plain": (ARCHITECTURE, {}),
    "recomputed": (ARCHITECTURE, {"model": {"remat": "full"}}),
    "dropout": (ARCHITECTURE, {"lora": {"dropout": 0.3}}),
    "reference and critic": (
        ARCHITECTURE,
        {"algorithm": {"adv_estimator": "gae", "critic": CriticConfig(), "kl": KlConfig(where="loss", coef=0.1)}},
    ),
    "bf16": (ARCHITECTURE, {"model": {"dtype": "bf16"}}),
    "some of the matrices": (ARCHITECTURE, {"lora": {"targets": ("q_proj", "down_proj")}}),
    "windows": (dataclasses.replace(ARCHITECTURE, family="mistral", windows=(4, 0)), {}),
    "experts": (dataclasses.replace(ARCHITECTURE, family="qwen3_moe", experts=Experts(4, 2, 16)), {}),
}


def make_learner(architecture: Architecture, changes: dict[str, Any], *, stacked: bool = False) -> Learner:
    given = dict(changes)
    lora = LoraConfig(**{"rank": 3, "alpha": 6.0, **given.pop("lora", {})})
    config = make_config(model={"lora": lora, **given.pop("model", {})}, **given)
    learner = Learner(config, architecture, make_params(0, architecture))
    if stacked:  # as a learner of several devices has it
        learner.base = as_stack(learner.base)
    return learner


def as_stack(base: Params) -> Params:
    return {**base, "layers": {key: jnp.stack(arrays) for key, arrays in base["layers"].items()}}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_what_one_with_a_stack_trains(case: str) -> None:
    architecture, changes = CASES[case]
    stacked, apart = (make_learner(architecture, changes, stacked=stacked) for stacked in (True, False))
    assert isinstance(apart.base["layers"]["query"], tuple)
    for step in range(3):
        expected, found = stacked.train(make_groups(step)), apart.train(make_groups(step))
        assert found.keys() == expected.keys()
        np.testing.assert_allclose(
            [found[name] for name in expected], list(expected.values()), rtol=1e-4, atol=1e-5, err_msg=str(step)
        )
    assert relative_error(apart.state.params, stacked.state.params) < 1e-4
    ids = np.arange(20, dtype=np.int32)
    np.testing.assert_allclose(apart.score(ids), stacked.score(ids), atol=1e-5)


FAMILY_KEYS: dict[str, dict[str, Any]] = {
    "qwen2": {"attention_bias": True, "tie_embeddings": True},
    "qwen3_moe": {"experts": Experts(4, 2, 16)},
    "mixtral": {"experts": Experts(4, 2, 16)},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_it_reads_what_one_of_several_devices_reads(family: str) -> None:
    architecture = dataclasses.replace(ARCHITECTURE, family=family, **FAMILY_KEYS.get(family, {}))
    tensors, device = to_hf(make_params(0, architecture), architecture), jax.devices()[0]
    mesh = make_mesh(MeshConfig(), [device])
    shardings = parameter_shardings(abstract_params(architecture), mesh)
    found = read_frozen(tensors, architecture, jnp.bfloat16, device)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(
        lambda x: (x.shape, x.dtype), abstract_frozen(architecture, jnp.bfloat16, device)
    )
    expected = place_hf(tensors, architecture, shardings, jnp.bfloat16)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), as_stack(found), expected))


def test_merged_on_the_learner_it_is_what_it_computes_with() -> None:
    learner = make_learner(ARCHITECTURE, {"sync_method": "nccl"})
    learner.train(make_groups(0))
    whole = from_hf({name: np.asarray(x) for name, x in learner.export("fp32").items()}, ARCHITECTURE)
    ids = np.arange(20, dtype=np.int32)
    np.testing.assert_allclose(Learner(make_config(), ARCHITECTURE, whole).score(ids), learner.score(ids), atol=1e-5)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_an_update_takes_no_second_base(remat: str) -> None:
    """The compiler may make no stack of the layers, and keep nothing more than of a stack's update."""
    deep = dataclasses.replace(ARCHITECTURE, num_layers=12)
    learner = make_learner(deep, {"model": {"remat": remat}})
    *_, update = (program for program in learner.programs(16) if program.name.startswith("update"))
    *arguments, base = update.arguments
    taken = [
        update.function.lower(*arguments, one).compile().memory_analysis().temp_size_in_bytes
        for one in (base, jax.eval_shape(as_stack, base))
    ]
    layer = sum(x.size * 4 for x in jax.tree.leaves(base["layers"])) / 12
    assert taken[0] < taken[1] + 2 * layer


def test_an_engine_of_the_device_computes_with_the_same_arrays(tmp_path: Path) -> None:
    config = make_config(model={"lora": LoraConfig(rank=3, alpha=6.0)})
    directory = make_tiny(config.model, 0, tmp_path / "tiny")
    architecture = load_architecture(directory)
    learner = Learner(config, architecture)
    learner.load(stored_tensors(directory))
    learner.train(make_groups(0))
    path = OrbaxPublisher(tmp_path / "weights").publish(
        1, 1, dict(learner.export("fp32")), model="", dtype="fp32", adapter=learner.adapter_info
    )
    ids = np.arange(20, dtype=np.int32)

    async def main() -> np.ndarray:
        settings: dict[str, Any] = {"slots": 2, "max_length": 64, "decode_steps": 4, "dtype": np.float32}
        engine = EmbeddedEngine(architecture, below=Below(directory, frozen_base(learner)), **settings)
        try:
            await engine.update_weights(WeightUpdate(1, 1, str(path)))
            params = engine._batch.params
            assert params["embedding"] is learner.base["embedding"]
            for key, layers in learner.base["layers"].items():
                mine = [getattr(layer[key], "base", layer[key]) for layer in params["layers"]]
                assert [id(x) for x in mine] == [id(x) for x in layers], key
            return await engine.score(ids)
        finally:
            await engine.close()

    np.testing.assert_allclose(asyncio.run(main()), learner.score(ids), atol=1e-5)
