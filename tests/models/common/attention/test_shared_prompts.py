"""Segments that share the places of a prompt: the plain formula under a mask that is written out pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.common.attention.attention import Window, attended_by, attention, body_for
from rljax.models.common.attention.spans import causal_spans
from rljax.models.common.hardware import CPU, Hardware

pytestmark = pytest.mark.slow


class Row(NamedTuple):
    """Segments by their length, and for each the segment whose first so many places it continues; 0, padding."""

    segments: list[tuple[int, int | None, int]]
    padding: int


SHORT = [
    Row([(12, None, 0), (5, 0, 9), (1, 0, 9), (7, None, 0), (3, 3, 4)], 4),
    Row([(2, None, 0), (20, 0, 1), (10, None, 0)], 0),
]
LONG = [Row([(300, None, 0), (140, 0, 290), (100, 0, 290), (60, None, 0), (90, 3, 1)], 10)]  # over blocks of 256


def _laid(rows: list[Row]) -> tuple[jax.Array, jax.Array, np.ndarray, np.ndarray]:
    """Segment ids, shared places, and for each pair of places whether the first sees the second, and how far apart they
    are in their sequence.
    """
    time = sum(length for length, _, _ in rows[0].segments) + rows[0].padding
    ids, shared = np.zeros((len(rows), time), np.int32), np.tile(np.int32([0, -1]), (len(rows), time, 1))
    seen, apart = np.zeros((len(rows), time, time), bool), np.zeros((len(rows), time, time), int)
    for r, row in enumerate(rows):
        starts = np.cumsum([0, *(length for length, _, _ in row.segments)])
        for number, (length, lead, prefix) in enumerate(row.segments):
            start = starts[number]
            ids[r, start : start + length] = number + 1
            before = [] if lead is None else list(range(starts[lead], starts[lead] + prefix))
            if before:
                shared[r, start : start + length] = before[0], before[-1]
            sequence = [*before, *range(start, start + length)]
            for place in range(start, start + length):
                own = sequence.index(place)
                for position, key in enumerate(sequence[: own + 1]):
                    seen[r, place, key], apart[r, place, key] = True, own - position
    return jnp.asarray(ids), jnp.asarray(shared), seen, apart


def _tensors(rows: int, time: int) -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal((rows, time, heads, 16)), jnp.float32) for heads in (4, 2, 2)]


def _plain(mask: np.ndarray) -> Callable[..., jax.Array]:
    def attended(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        key, value = (jnp.repeat(x, 2, axis=2) for x in (key, value))
        scores = jnp.where(mask[:, None], jnp.einsum("bthk,bshk->bhts", query, key) / 4, -1e30)
        return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), value)

    return attended


@pytest.mark.parametrize("window", [0, 1, 6, 150])
@pytest.mark.parametrize(("body", "rows"), [("dense", SHORT), ("blockwise", SHORT), ("blockwise", LONG)])
def test_a_segment_sees_the_prompt_that_it_shares(body: str, rows: list[Row], window: int) -> None:
    ids, shared, seen, apart = _laid(rows)
    tensors, real = _tensors(*ids.shape), (ids > 0)[:, :, None, None]
    weight = jax.random.normal(jax.random.key(1), tensors[0].shape) * real

    def ours(*x: jax.Array) -> jax.Array:
        return attended_by(body, *x, causal_spans(ids, shared), CPU, Window((window,)))

    expected = _plain(seen & (apart < window) if window else seen)
    np.testing.assert_allclose(jax.jit(ours)(*tensors) * real, expected(*tensors) * real, atol=1e-5)
    got, wanted = (
        jax.jit(jax.grad(lambda *x, f=function: jnp.sum(f(*x) * weight), argnums=(0, 1, 2)))(*tensors)
        for function in (ours, expected)
    )
    for mine, plain in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, plain, atol=1e-5 * max(1.0, float(jnp.abs(plain).max())))


def test_a_window_that_is_known_late_reaches_as_far_into_the_prompt() -> None:
    ids, shared, seen, apart = _laid(SHORT)
    tensors, real = _tensors(*ids.shape), (ids > 0)[:, :, None, None]
    for which, mask in ((0, seen & (apart < 6)), (1, seen)):
        late = jax.jit(lambda which, *x: attention(*x, causal_spans(ids, shared), CPU, Window((6, 0), which)))
        np.testing.assert_allclose(late(which, *tensors) * real, _plain(mask)(*tensors) * real, atol=1e-5)


@pytest.mark.parametrize("hardware", [Hardware("tpu"), Hardware("gpu", capability=9.0)])
def test_accelerators_compute_shared_prompts_without_their_kernel_and_say_so(hardware: Hardware) -> None:
    query = jax.ShapeDtypeStruct((1, 2048, 2, 128), "bfloat16")
    assert body_for(query, hardware).reason == ""
    found = body_for(query, hardware, shared=True)
    assert (found.name, "learner.share_prompts=False" in found.reason) == ("blockwise", True)
