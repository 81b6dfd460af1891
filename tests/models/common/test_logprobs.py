"""Log-probabilities, entropies and their gradients against log-softmax in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from rljax.models.common.architecture import Architecture
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.params import Params

pytestmark = [pytest.mark.slow, pytest.mark.optimised]

HIDDEN = 8


def _architecture(vocabulary: int, tied: bool = True) -> Architecture:
    return Architecture(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        tie_embeddings=tied,
    )


def _case(rows: int, time: int, vocabulary: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(vocabulary)
    return {
        "hidden": rng.normal(size=(rows, time, HIDDEN)).astype(np.float32),
        "table": rng.normal(size=(vocabulary, HIDDEN)).astype(np.float32),
        "targets": rng.integers(0, vocabulary, (rows, time)).astype(np.int32),
        "temperature": rng.uniform(0.3, 2.0, (rows, time)).astype(np.float32),
        "logprob_weight": rng.normal(size=(rows, time)).astype(np.float32),
        "entropy_weight": rng.normal(size=(rows, time)).astype(np.float32),
    }


def _expected(case: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    logits = case["hidden"].astype(np.float64) @ case["table"].astype(np.float64).T
    logits /= case["temperature"].astype(np.float64)[..., None]
    highest = logits.max(-1, keepdims=True)
    log_p = logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_p, case["targets"][..., None], -1)[..., 0]
    return chosen, -(np.exp(log_p) * log_p).sum(-1)


def _expected_gradients(case: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Of the weighted sum of log-probabilities and entropies, by torch's differentiation in float64."""
    wide = {name: torch.from_numpy(array).double() for name, array in case.items() if name != "targets"}
    hidden, table = wide["hidden"].requires_grad_(), wide["table"].requires_grad_()
    log_p = torch.log_softmax(hidden @ table.T / wide["temperature"][..., None], -1)
    chosen = log_p.gather(-1, torch.from_numpy(case["targets"]).long()[..., None])[..., 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    (wide["logprob_weight"] * chosen + wide["entropy_weight"] * entropy).sum().backward()
    return np.asarray(hidden.grad), np.asarray(table.grad)


def _ours(case: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in case.items()}


def _found(case: dict[str, np.ndarray], chunk: int, tied: bool, temperature: Any = None) -> tuple[Any, Any]:
    """(log-probabilities, entropies), (gradient of the hidden states, of the table)."""
    architecture = _architecture(len(case["table"]), tied)
    params = {"embedding": case["table"]} if tied else {"head": case["table"].T, "embedding": 0 * case["table"]}
    arrays = _ours(case)
    temperature = arrays["temperature"] if temperature is None else temperature

    def total(hidden: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        logprobs, entropy = token_logprobs(params, architecture, hidden, arrays["targets"], temperature, chunk=chunk)
        return jnp.sum(arrays["logprob_weight"] * logprobs + arrays["entropy_weight"] * entropy), (logprobs, entropy)

    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, values), (d_hidden, d_params) = gradient(case["hidden"], params)
    return values, (d_hidden, d_params["embedding"] if tied else d_params["head"].T)


def _assert_close(found: Any, expected: np.ndarray, relative: float) -> None:
    assert found.dtype == jnp.float32
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=relative * scale)


@pytest.mark.parametrize(
    ("shape", "chunk", "tied"),
    [
        ((2, 9, 37), 1024, True),  # everything at once
        ((2, 9, 37), 5, True),  # 4 pieces of the vocabulary, one token left over
        ((3, 20, 37), 1, False),  # more tokens than vocabulary
        ((2, 9, 64), 9, False),  # pieces that come out even
        ((2, 128, 5001), 256, True),  # kept logits in several pieces
        ((2, 128, 5001), 64, False),  # recomputed ones
    ],
)
def test_values_and_gradients_are_those_of_float64(shape: tuple[int, int, int], chunk: int, tied: bool) -> None:
    case = _case(*shape)
    values, gradients = _found(case, chunk, tied)
    for found, expected in zip(values, _expected(case), strict=True):
        _assert_close(found, expected, 2e-6)
    for found, expected in zip(gradients, _expected_gradients(case), strict=True):
        _assert_close(found, expected, 1e-5)


def test_one_temperature_serves_all_tokens() -> None:
    case = _case(2, 9, 37) | {"temperature": np.full((2, 9), 0.7, np.float32)}
    values, gradients = _found(case, 8, True, temperature=0.7)
    for found, expected in zip(values, _expected(case), strict=True):
        _assert_close(found, expected, 2e-6)
    for found, expected in zip(gradients, _expected_gradients(case), strict=True):
        _assert_close(found, expected, 1e-5)


def test_no_gradient_flows_to_the_temperature() -> None:
    case = _ours(_case(2, 9, 37))
    architecture, params = _architecture(37), {"embedding": case["table"]}

    def total(temperature: jax.Array) -> jax.Array:
        results = token_logprobs(params, architecture, case["hidden"], case["targets"], temperature, chunk=8)
        return jnp.sum(results[0] + results[1])

    assert not np.asarray(jax.grad(total)(case["temperature"])).any()


@pytest.mark.parametrize("chunk", [4, 1024])
def test_far_apart_logits_stay_finite(chunk: int) -> None:
    # Logits in the hundreds: exp of them, or of their differences, leaves the range of float32.
    case = _case(2, 9, 37)
    case["hidden"] *= 200
    values, gradients = _found(case, chunk, True)
    for found, expected in zip(values, _expected(case), strict=True):
        _assert_close(found, expected, 1e-6)
    for found, expected in zip(gradients, _expected_gradients(case), strict=True):
        _assert_close(found, expected, 1e-4)


@pytest.mark.parametrize("chunk", [4, 1024])
def test_bfloat16_activations_give_float32_logits(chunk: int) -> None:
    case = _case(2, 9, 37)
    rounded = {name: case[name].astype(ml_dtypes.bfloat16) for name in ("hidden", "table")}
    expected = _expected(case | {name: array.astype(np.float32) for name, array in rounded.items()})
    params = {"embedding": case["table"]}  # float32 masters: rounded where they meet the activations
    arrays, hidden = _ours(case), jnp.asarray(rounded["hidden"])
    values = token_logprobs(params, _architecture(37), hidden, arrays["targets"], arrays["temperature"], chunk=chunk)
    for found, wanted in zip(values, expected, strict=True):
        _assert_close(found, wanted, 1e-5)


def test_the_logits_of_all_tokens_never_exist_at_once() -> None:
    case = _ours(_case(4, 128, 4096))
    architecture = _architecture(4096)

    def total(hidden: jax.Array, table: jax.Array) -> jax.Array:
        params = {"embedding": table}
        return jnp.sum(token_logprobs(params, architecture, hidden, case["targets"], 1.0, chunk=32)[0])

    compiled = jax.jit(jax.grad(total, argnums=(0, 1))).lower(case["hidden"], case["table"]).compile()
    everything = 4 * 128 * 4096 * 4  # bytes
    used: Any = compiled.memory_analysis()
    assert used.temp_size_in_bytes < everything / 2
