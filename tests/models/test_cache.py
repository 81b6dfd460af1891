"""Prefill and decoding, token by token, against transformers' forward pass over whole sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.cache import KVCache, decode_step, init_cache, prefill
from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.files import load_directory
from rljax.models.hf_names import to_hf
from rljax.models.transformer import output_head
from rljax.sampler import programs
from tests.models.hf_models import FAMILIES, assert_same_logits, reference_logits, save, shared_model, tokens

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
LENGTH = 24


@functools.cache
def _decode(architecture: Architecture) -> Callable[..., tuple[jax.Array, KVCache]]:
    return jax.jit(lambda params, cache, ids, places: decode_step(params, architecture, cache, ids, places)[:2])


def _load(name: str, directory: Path) -> tuple[Architecture, Params]:
    architecture, params = load_directory(save(shared_model(name), directory))
    tensors, device = to_hf(params, architecture), jax.devices()[0]
    return architecture, programs.place(tensors, architecture=architecture, dtype="float32", device=device)


def _longer(cache: KVCache, length: int) -> KVCache:
    more = length - cache.length
    keys = tuple(jnp.pad(key, ((0, 0), (0, 0), (0, 0), (0, more))) for key in cache.key)
    values = tuple(jnp.pad(value, ((0, 0), (0, 0), (0, more), (0, 0))) for value in cache.value)
    return KVCache(keys, values)


@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_and_decoding_give_the_logits_of_the_whole_sequences(name: str, tmp_path: Path) -> None:
    architecture, params = _load(name, tmp_path / name)
    token_ids = tokens(3, LENGTH)
    expected = reference_logits(shared_model(name), token_ids)
    lengths = np.array([9, 1, 5], np.int32)
    prompts = token_ids[:, :9].copy()
    for row, length in enumerate(lengths):
        prompts[row, length:] = 7  # padding must not be seen, neither by prefill nor later
    hidden, cache, _ = jax.jit(lambda p: prefill(p, architecture, jnp.asarray(prompts), jnp.asarray(lengths)))(params)
    found = np.asarray(hidden @ output_head(params, architecture))
    for row, length in enumerate(lengths):
        assert_same_logits(found[row, :length], expected[row, :length], TOLERANCE)

    cache = _longer(cache, LENGTH)
    for step in range(LENGTH - int(lengths.max())):
        places = lengths + step
        rows = np.arange(3)
        logits, cache = _decode(architecture)(params, cache, token_ids[rows, places], places)
        assert logits.dtype == jnp.float32
        assert_same_logits(np.asarray(logits), expected[rows, places], TOLERANCE)


def test_decoding_alone_gives_the_same_from_an_empty_cache(tmp_path: Path) -> None:
    architecture, params = _load("qwen3", tmp_path / "model")
    token_ids = tokens(3, 6, seed=1)
    cache = init_cache(architecture, slots=3, length=LENGTH, dtype=jnp.float32)
    assert (cache.slots, cache.length) == (3, LENGTH)
    expected = reference_logits(shared_model("qwen3"), token_ids)
    for place in range(6):
        logits, cache = _decode(architecture)(params, cache, token_ids[:, place], np.full(3, place, np.int32))
        assert_same_logits(np.asarray(logits), expected[:, place], TOLERANCE)


def test_a_position_beyond_the_cache_writes_nothing(tmp_path: Path) -> None:
    architecture, params = _load("qwen3", tmp_path / "model")
    before = init_cache(architecture, slots=3, length=LENGTH, dtype=jnp.float32)
    places = np.array([LENGTH, 2, LENGTH + 5], np.int32)
    _, after = _decode(architecture)(params, before, tokens(3, 1)[:, 0], places)
    for key, value in zip(after.key, after.value, strict=True):
        written = np.abs(np.asarray(value)).sum((1, 3)) > 0  # [slots, length]
        np.testing.assert_array_equal(np.argwhere(written), [[1, 2]])
        written = np.abs(np.asarray(key)).sum((1, 2)) > 0
        np.testing.assert_array_equal(np.argwhere(written), [[1, 2]])
