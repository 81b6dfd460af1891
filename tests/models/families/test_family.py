"""What a family may have of its own, and that its file and its line in the registry are all that says so."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from rljax.config.schema import MeshConfig
from rljax.learner.sharding import make_mesh, parameter_shardings
from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.block import LAYER_NAMES, Block, constant
from rljax.models.families.family import Family
from rljax.models.families.registry import FAMILIES
from rljax.models.hf_names import from_hf, tensor_shapes, to_hf
from rljax.models.transformer import abstract_params, hidden_states, init_params

SHAPE: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 4,
}


class ScaledBlock(Block):
    """Layer whose queries are multiplied by a learned number for each place in a head."""

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        super().__init__(architecture, rngs)
        self.query_scale = constant(1.0, architecture.head_dim)

    def before_rotation(self, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return query * self.query_scale[...], key


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Architecture:
    family = Family(
        "scaled",
        "ScaledForCausalLM",
        block=ScaledBlock,
        names={**LAYER_NAMES, "query_scale": "self_attn.scale"},
        sharding={"query_scale": (None, "tensor")},
    )
    monkeypatch.setitem(FAMILIES, "scaled", family)  # type: ignore[arg-type]
    return Architecture("scaled", **SHAPE)


@pytest.mark.slow
def test_a_new_family_brings_its_block_its_names_and_its_sharding(scaled: Architecture) -> None:
    params = init_params(scaled, 0)
    tensors = {name: np.asarray(tensor) for name, tensor in to_hf(params, scaled).items()}
    assert tensors["model.layers.1.self_attn.scale"].shape == (4,)
    jax.tree.map(np.testing.assert_array_equal, from_hf(tensors, scaled), jax.tree.map(np.asarray, params))
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    assert parameter_shardings(abstract_params(scaled), mesh)["layers"]["query_scale"].spec == P(None, "tensor")

    ids = np.arange(6, dtype=np.int32)[None]
    run = jax.jit(hidden_states, static_argnums=1)

    def hidden(scale: float) -> np.ndarray:
        layers = params["layers"] | {"query_scale": np.full((2, 4), scale, np.float32)}
        return np.asarray(run(params | {"layers": layers}, scaled, ids, ids, np.ones_like(ids)))

    plain = Architecture("llama", **SHAPE)
    layers = {key: array for key, array in params["layers"].items() if key != "query_scale"}
    as_llama = np.asarray(run(params | {"layers": layers}, plain, ids, ids, np.ones_like(ids)))
    np.testing.assert_allclose(hidden(1.0), as_llama, atol=1e-6)
    assert np.abs(hidden(3.0) - as_llama).max() > 1e-3


@pytest.mark.parametrize(
    ("family", "bias", "extra"),
    [
        ("llama", False, set()),
        ("llama", True, {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}),
        ("qwen2", True, {"q_proj.bias", "k_proj.bias", "v_proj.bias"}),
        ("qwen3", False, {"q_norm.weight", "k_norm.weight"}),
        ("qwen3", True, {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "q_norm.weight", "k_norm.weight"}),
    ],
)
def test_tensors_of_a_layer_by_family(family: str, bias: bool, extra: set[str]) -> None:
    names = tensor_shapes(Architecture(family, attention_bias=bias, **SHAPE))
    attention = "model.layers.1.self_attn."
    found = {name.removeprefix(attention) for name in names if name.startswith(attention)}
    assert found == {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"} | extra


def test_the_printed_form_by_which_runs_know_their_model_is_the_one_of_before() -> None:
    assert repr(Architecture("qwen3", qk_norm=True, **SHAPE)) == (
        "Architecture(family='qwen3', vocab_size=16, hidden_size=8, intermediate_size=16, num_layers=2, num_heads=2, "
        "num_kv_heads=1, head_dim=4, rope_theta=10000.0, rope_scaling=None, rms_eps=1e-06, tie_embeddings=False, "
        "attention_bias=False, qk_norm=True, max_position_embeddings=2048)"
    )


def test_models_that_differ_in_their_experts_have_another_printed_form() -> None:
    two, one = (Architecture("mixtral", **SHAPE, experts=Experts(8, picked, 16)) for picked in (2, 1))
    assert repr(two).endswith("experts=Experts(count=8, per_token=2, width=16, normalised=True))")
    assert repr(one) != repr(two)
