"""The engine's programs: traced for accelerators that are not here, and what they hold at once."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.cache import init_cache
from rljax.models.common.architecture import Experts
from rljax.models.common.hardware import Hardware
from rljax.models.hf_names import tensor_shapes
from rljax.sampler import programs
from rljax.sampler.batch import _idle_rows
from tests.sampler.conftest import ARCHITECTURE


def _products(platform: str, dtype: str) -> list[str]:
    """What the engine's programs say of each of their products."""
    tensors = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(ARCHITECTURE).items()}
    params = programs.place(tensors, architecture=ARCHITECTURE, dtype=dtype, device=jax.devices()[0])
    model: Any = {"architecture": ARCHITECTURE, "hardware": Hardware(platform), "dtype": dtype}
    cache = jax.eval_shape(lambda: init_cache(ARCHITECTURE, 2, 16, jnp.dtype(dtype)))
    tokens, lengths = np.zeros((1, 16), np.int32), np.full(1, 16, np.int32)
    traced = [
        programs.read_prompts.trace(params, tokens, lengths, **model),
        programs.score.trace(params, tokens, **model),
        programs.decode.trace(params, cache, _idle_rows(2), steps=2, truncate=False, **model),
    ]
    found = [str(one.jaxpr).split("dot_general[")[1:] for one in traced]
    assert all(len(each) > 10 for each in found)
    return [product[:300] for each in found for product in each]


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_a_float32_engine_multiplies_in_float32(platform: str) -> None:
    exact = "precision=(Precision.HIGHEST, Precision.HIGHEST)"
    assert all(exact in product for product in _products(platform, "float32"))
    assert not any(exact in product for product in _products(platform, "bfloat16"))


@pytest.mark.parametrize("asked", [False, True])
def test_the_experts_of_tokens_are_computed_where_they_are_asked_for(asked: bool) -> None:
    """Nothing but them is int16."""
    routed = replace(ARCHITECTURE, family="qwen3_moe", qk_norm=True, experts=Experts(4, 2, 16))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(routed).items()}
    params = programs.place(tensors, architecture=routed, dtype="float32", device=jax.devices()[0])
    model: Any = {"architecture": routed, "hardware": Hardware("cpu"), "dtype": "float32", "record_routes": asked}
    cache = jax.eval_shape(lambda: init_cache(routed, 2, 16, jnp.float32))
    lowered = (
        programs.read_prompts.lower(params, np.zeros((1, 16), np.int32), np.full(1, 16, np.int32), **model),
        programs.decode.lower(params, cache, _idle_rows(2), steps=2, truncate=False, **model),
    )
    for program in lowered:
        assert ("s16[" in program.compile().as_text()) is asked


class _Read(Mapping[str, np.ndarray]):
    """Tensors that are made when they are asked for; `held`: how many of those before were there then, at most. XLA
    lets go of one in a thread of its own, a moment after it has copied it, and Python's reference goes with the next
    collection of garbage: that is waited for.
    """

    def __init__(self) -> None:
        self.shapes, self.held = tensor_shapes(ARCHITECTURE), 0
        self._given: list[weakref.ref[np.ndarray]] = []

    def __getitem__(self, name: str) -> np.ndarray:
        deadline = time.monotonic() + 5
        while (held := sum(given() is not None for given in self._given)) > 1 and time.monotonic() < deadline:
            gc.collect(0)
        self.held = max(self.held, held)
        tensor = np.ones(self.shapes[name], np.float32)
        self._given.append(weakref.ref(tensor))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def test_a_version_is_placed_tensor_by_tensor() -> None:
    """Beside the version that serves and the one that is placed there is no third."""
    tensors = _Read()
    placed = programs.place(tensors, architecture=ARCHITECTURE, dtype="bfloat16", device=jax.devices()[0])
    assert tensors.held <= 1, "that of the loop before, until its name is taken"
    assert {leaf.dtype.name for leaf in jax.tree.leaves(placed)} == {"bfloat16"}


def test_a_cache_is_resized_array_by_array(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = init_cache(ARCHITECTURE, 2, 16, jnp.float32)
    marked = type(cache)(*([x.at[1].set(i) for i, x in enumerate(each)] for each in cache))
    old, kept, resized = jax.tree.leaves(marked), [], programs._resized

    def one(*arguments: Any, **keys: Any) -> jax.Array:
        kept.append(sum(not array.is_deleted() for array in old))
        return resized(*arguments, **keys)

    monkeypatch.setattr(programs, "_resized", one)
    new = programs.resize(marked, np.array([1, 0, 0]), length=24)
    assert kept == [4, 3, 2, 1], "keys and values of two layers"
    assert (new.slots, new.length) == (3, 24)
    for layer, (keys, values) in enumerate(zip(new.key, new.value, strict=True)):
        assert (keys[0, :, :, :16] == layer).all()
        assert (values[0, :, :16] == layer).all()
        assert not keys[1:].any(), "which was the other slot"
        assert not keys[:, :, :, 16:].any()
