"""The flat names and shapes of Hugging Face, and what is said about tensors that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

from rljax.models.common.architecture import Architecture
from rljax.models.families.registry import from_config
from rljax.models.hf_names import check_tensors, from_hf, tensor_shapes, to_hf
from rljax.models.transformer import abstract_params, init_params
from tests.models.hf_models import CONFIGS, file_tensors, shared_model

QUERY = "model.layers.1.self_attn.q_proj.weight"


def _tensors(name: str) -> tuple[dict[str, np.ndarray], Architecture]:
    tensors = file_tensors(shared_model(name))
    return tensors, from_config(CONFIGS[name].to_dict())


@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_shapes_are_those_of_transformers(name: str) -> None:
    tensors, architecture = _tensors(name)
    assert tensor_shapes(architecture) == {key: array.shape for key, array in tensors.items()}


@pytest.mark.parametrize("name", ["llama-untied", "qwen3", "qwen3_moe", "mixtral-untied"])
def test_there_and_back_changes_nothing(name: str) -> None:
    tensors, architecture = _tensors(name)
    params = from_hf(tensors, architecture)
    shapes = jax.tree.map(lambda array: (array.shape, array.dtype), params)
    assert shapes == jax.tree.map(lambda array: (array.shape, array.dtype), abstract_params(architecture))
    for key, array in to_hf(params, architecture).items():
        np.testing.assert_array_equal(np.asarray(array), tensors[key])


@pytest.mark.parametrize("check", [from_hf, check_tensors])
def test_a_tensor_that_does_not_fit_is_named_in_one_line(check: Callable[..., object]) -> None:
    tensors, architecture = _tensors("qwen3")
    missing = {key: array for key, array in tensors.items() if "q_proj" not in key}
    with pytest.raises(ValueError, match=r"^the model lacks 2 tensors, the first is model\.layers\.0\.self_attn\.q_"):
        check(missing, architecture)
    extra = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"^the model has 1 tensors that nothing reads, the first is model\.extra$"):
        check(tensors | {"model.extra": extra}, architecture)
    with pytest.raises(ValueError, match=r"^tensor model\.layers\.1\.self_attn\.q_proj\.weight has shape \[32, 96\], "):
        check(tensors | {QUERY: tensors[QUERY].T}, architecture)


def test_what_a_tied_model_repeats_and_old_constants_are_ignored() -> None:
    tensors, architecture = _tensors("qwen3")
    repeated = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    constant = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(12, np.float32)}
    assert "head" not in from_hf(tensors | repeated | constant, architecture)


def test_an_untied_model_needs_its_head() -> None:
    tensors, architecture = _tensors("qwen3-untied")
    del tensors["lm_head.weight"]
    with pytest.raises(ValueError, match=r"^the model lacks 1 tensors, the first is lm_head\.weight$"):
        from_hf(tensors, architecture)


def test_random_parameters_depend_on_the_seed_and_the_layer() -> None:
    architecture = _tensors("qwen2")[1]
    make = jax.jit(init_params, static_argnums=0)
    first, other = (jax.tree.map(np.asarray, make(architecture, seed)) for seed in (3, 4))
    assert not (first["embedding"] == other["embedding"]).any()
    assert not (first["layers"]["query"][0] == first["layers"]["query"][1]).any()
    # normal with variance 1/width of what they read
    assert first["layers"]["down"].std() == pytest.approx(48**-0.5, rel=0.1)
    assert first["layers"]["gate"].std() == pytest.approx(32**-0.5, rel=0.1)
