"""The forward and backward pass against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rljax.models.common.architecture import Architecture
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.params import Params
from rljax.models.common.rope import inverse_frequencies
from rljax.models.files import load_directory
from rljax.models.hf_names import to_hf
from rljax.models.transformer import abstract_params, hidden_states
from tests.models.hf_models import (
    CONFIGS,
    FAMILIES,
    assert_same_logits,
    our_logits,
    random_model,
    reference_logits,
    save,
    shared_model,
    tokens,
)

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = shared_model(name)
    architecture, params = load_directory(save(model, tmp_path / name))
    assert architecture.tie_embeddings == ("untied" not in name)
    token_ids = tokens(2, 48)  # past llama's 32 positions before scaling
    assert_same_logits(our_logits(params, architecture, token_ids), reference_logits(model, token_ids), TOLERANCE)


def test_scaled_rope_frequencies_are_those_of_transformers(tmp_path: Path) -> None:
    model = shared_model("llama")
    architecture, _ = load_directory(save(model, tmp_path / "model"))
    expected = model.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_array_equal(inverse_frequencies(architecture)[0], expected)
    # the case is worth its name: frequencies of all three kinds
    stretched = 10_000.0 ** (-np.arange(0, 24, 2) / 24) / expected
    assert stretched[0] == pytest.approx(1.0)
    assert stretched[-1] == pytest.approx(4.0)
    assert ((stretched > 1.1) & (stretched < 3.9)).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_rows_equal_separate_rows(name: str, tmp_path: Path) -> None:
    model = shared_model(name)
    architecture, params = load_directory(save(model, tmp_path / name))
    lengths = [[20, 1, 17], [40]]  # of 48 tokens: both rows end in padding
    sequences = [[tokens(1, length, seed=length) for length in row] for row in lengths]
    token_ids, positions, segment_ids = (np.zeros((2, 48), np.int32) for _ in range(3))
    token_ids[:] = tokens(2, 48, seed=99)  # padding holds arbitrary tokens
    for row, parts in enumerate(sequences):
        start = 0
        for number, part in enumerate(parts, 1):
            place = slice(start, start + part.shape[1])
            token_ids[row, place], segment_ids[row, place] = part[0], number
            positions[row, place] = np.arange(part.shape[1])
            start += part.shape[1]
    packed = our_logits(params, architecture, token_ids, positions, segment_ids)
    assert np.isfinite(packed).all()
    for row, parts in enumerate(sequences):
        start = 0
        for part in parts:
            place = slice(start, start + part.shape[1])
            assert_same_logits(packed[row : row + 1, place], reference_logits(model, part), TOLERANCE)
            start += part.shape[1]


def _gradient(
    architecture: Architecture, params: Params, token_ids: np.ndarray, remat: str
) -> tuple[float, dict[str, np.ndarray]]:
    inputs, targets = jnp.asarray(token_ids[:, :-1]), jnp.asarray(token_ids[:, 1:])
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)

    def loss(params: Params) -> jax.Array:
        hidden = hidden_states(params, architecture, inputs, positions, jnp.ones_like(inputs), remat=remat)
        return -jnp.mean(token_logprobs(params, architecture, hidden, targets, 1.0, chunk=16)[0])

    @jax.jit
    def named(params: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
        value, gradient = jax.value_and_grad(loss)(params)
        return value, to_hf(gradient, architecture)

    value, gradient = named(params)
    return float(value), {name: np.asarray(array) for name, array in gradient.items()}


def _assert_same_gradients(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = np.abs(found[name] - gradient).max() / np.abs(gradient).max()
        assert error < tolerance, f"{name}: {error}"


def _expected_gradient(model: torch.nn.Module, token_ids: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    ids = torch.from_numpy(token_ids.astype(np.int64))
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    # named_parameters lists a tied head once, with the sum of both gradients
    found = {name: np.asarray(parameter.grad) for name, parameter in model.named_parameters()}
    for name in [name for name in found if ".experts." in name]:  # transformers has them in one parameter
        joined, layer = found.pop(name), name.rpartition(".")[0]
        parts = ("gate", "up") if name.endswith("gate_up_proj") else ("down",)
        for expert, of_expert in enumerate(joined):
            for part, gradient in zip(parts, np.split(of_expert, len(parts)), strict=True):
                found[f"{layer}.{expert}.{part}_proj.weight"] = gradient
    return loss.item(), found


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe-untied"])
def test_gradients_are_those_of_transformers_under_every_remat_policy(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    architecture, params = load_directory(save(model, tmp_path / "model"))
    token_ids = tokens(2, 25)
    expected_loss, expected = _expected_gradient(model, token_ids)
    found = [_gradient(architecture, params, token_ids, remat) for remat in ("none", "dots", "full")]
    for loss, gradient in found:
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        _assert_same_gradients(gradient, expected, 1e-4)
        _assert_same_gradients(gradient, found[0][1], 1e-5)


def test_an_unknown_remat_policy_is_refused(tmp_path: Path) -> None:
    architecture, _ = load_directory(save(shared_model("qwen3"), tmp_path / "model"))
    row = jnp.zeros((1, 4), jnp.int32)
    with pytest.raises(ValueError, match=r"remat 'some' is unknown; choose none, dots, full"):
        jax.eval_shape(
            lambda params: hidden_states(params, architecture, row, row, row, remat="some"),
            abstract_params(architecture),
        )
