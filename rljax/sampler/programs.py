"""The compiled programs of the engine. Each is compiled once per combination of bucket sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from rljax.models.cache import KVCache, Routes, decode_step, prefill
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.lora import Adapted
from rljax.models.common.params import Params
from rljax.models.common.placing import on_device
from rljax.models.hf_names import from_hf_by_layer
from rljax.sampler.sampling import request_uniforms, sample

_SCORE_CHUNK = 256  # tokens whose logits exist at once

Either = Any
"""A NumPy array on the host's side of a program, a JAX array within."""


class Model(TypedDict):
    """Static arguments of every program: the model, the engine's device, and the dtype of the computation."""

    architecture: Architecture
    hardware: Hardware
    dtype: str


class Rows(NamedTuple):
    """State of each slot; a pytree of arrays with one entry a slot.

    Attributes:
        token: the last token, whose keys and values are not in the cache yet.
        position: its position.
        sampled: tokens of the response so far: the index of the next one in the request's random stream.
        budget: tokens that may still be sampled; 0 for an idle slot.
        temperature, top_k, top_p: as in `sampling.sample`.
        seeds: high and low half of the request's seed.
        stops: tokens that end the request, filled up with -1.
        adapter: which of the adapters that lie side by side in the parameters is the request's, from 0.
    """

    token: Int[Either, " slots"]
    position: Int[Either, " slots"]
    sampled: Int[Either, " slots"]
    budget: Int[Either, " slots"]
    temperature: Float[Either, " slots"]
    top_k: Int[Either, " slots"]
    top_p: Float[Either, " slots"]
    seeds: UInt[Either, "slots 2"]
    stops: Int[Either, "slots stops"]
    adapter: Int[Either, " slots"]


class Decoded(NamedTuple):
    """Tokens sampled by one call of `decode`.

    Attributes:
        tokens: int32; row i holds the i-th token of every slot, beyond the slot's count anything.
        logprobs: float32, like `tokens`.
        counts: tokens that each slot sampled.
        budget: what is left of each slot's budget; 0 when its request has ended.
        stopped: whether a stop token ended it.
        routes: int16, experts that the token before each of `tokens` was sent to; None where they are not asked for.
    """

    tokens: Int[Either, "steps slots"]
    logprobs: Float[Either, "steps slots"]
    counts: Int[Either, " slots"]
    budget: Int[Either, " slots"]
    stopped: Bool[Either, " slots"]
    routes: Int[Either, "steps slots layers picked"] | None


class _Loop(NamedTuple):
    step: Int[Array, ""]
    cache: KVCache
    token: Int[Array, " slots"]
    decoded: Decoded


@functools.partial(jax.jit, static_argnames=("architecture", "hardware", "dtype", "record_routes"))
def read_prompts(
    params: Params,
    token_ids: Int[Array, "rows time"],
    lengths: Int[Array, " rows"],
    adapters: Int[Array, " rows"] | None = None,
    *,
    architecture: Architecture,
    hardware: Hardware,
    dtype: str,
    record_routes: bool = False,
) -> tuple[KVCache, Routes]:
    """Computes keys and values of whole sequences, as a cache of one slot a row, and the experts of their tokens where
    `record_routes`. `lengths` are at least 1; ``adapters`` are as in `Rows`.
    """
    params = _for_rows(params, adapters)
    with hardware.precise(dtype):
        _, cache, routes = prefill(params, architecture, token_ids, lengths, dtype=jnp.dtype(dtype), hardware=hardware)
    return cache, routes if record_routes else None


@functools.partial(jax.jit, donate_argnames="cache")
def insert(cache: KVCache, prompts: KVCache, rows: Int[Array, " n"], slots: Int[Array, " n"]) -> KVCache:
    """Copies row ``rows[i]`` of what `read_prompts` made into slot ``slots[i]``; out of range slots are left out."""
    time = min(prompts.length, cache.length)
    keys = (
        old.at[slots, :, :, :time].set(new[rows, :, :, :time], mode="drop")
        for old, new in zip(cache.key, prompts.key, strict=True)
    )
    values = (
        old.at[slots, :, :time].set(new[rows, :, :time], mode="drop")
        for old, new in zip(cache.value, prompts.value, strict=True)
    )
    return KVCache(tuple(keys), tuple(values))


def resize(cache: KVCache, sources: Int[Either, " slots"], *, length: int) -> KVCache:
    """Returns a cache whose slot i is the old one's slot ``sources[i]``, cut or padded to `length` positions. The old
    one is given away, array by array: both are never there whole.
    """

    def moved(old: jax.Array, axis: int) -> jax.Array:
        new: jax.Array = jax.block_until_ready(_resized(old, sources, length=length, axis=axis))
        old.delete()
        return new

    return KVCache(tuple(moved(keys, 3) for keys in cache.key), tuple(moved(values, 2) for values in cache.value))


@functools.partial(jax.jit, static_argnames=("length", "axis"))
def _resized(old: jax.Array, sources: Int[Array, " slots"], *, length: int, axis: int) -> jax.Array:
    kept = min(length, old.shape[axis])
    picked = jax.lax.slice_in_dim(old[sources], 0, kept, axis=axis)
    return jnp.pad(picked, [(0, length - kept if i == axis else 0) for i in range(old.ndim)])


@functools.partial(
    jax.jit,
    static_argnames=("architecture", "hardware", "dtype", "steps", "truncate", "record_routes"),
    donate_argnames="cache",
)
def decode(
    params: Params,
    cache: KVCache,
    rows: Rows,
    *,
    architecture: Architecture,
    hardware: Hardware,
    dtype: str,
    steps: int,
    truncate: bool,
    record_routes: bool = False,
) -> tuple[KVCache, Decoded]:
    """Samples up to `steps` tokens for every slot, fewer when all requests end before.

    Args:
        params: of the model, as `place` returns them.
        cache: holds every position of each slot before ``rows.position``; given away.
        rows: of the slots.
        architecture: of the model.
        hardware: of the engine.
        dtype: of the computation.
        steps: tokens at most.
        truncate: whether a request in the batch uses top-k or top-p.
        record_routes: whether the experts of each token are returned, of a model with experts.
    """
    params = _for_rows(params, rows.adapter)
    start = _nothing(rows, steps, architecture, record_routes)

    def unfinished(loop: _Loop) -> Bool[Array, ""]:
        return (loop.step < steps) & jnp.any(loop.decoded.budget > 0)

    def body(loop: _Loop) -> _Loop:
        done = loop.decoded
        active = done.budget > 0
        # beyond the cache, nothing is written
        position = jnp.where(active, rows.position + loop.step, cache.length)
        with hardware.precise(dtype):
            logits, filled, routes = decode_step(
                params, architecture, loop.cache, loop.token, position, dtype=jnp.dtype(dtype), hardware=hardware
            )
        uniforms = request_uniforms(rows.seeds, rows.sampled + loop.step)
        token, logprob = sample(logits, rows.temperature, rows.top_k, rows.top_p, uniforms, truncate=truncate)
        stopped = active & jnp.any(token[:, None] == rows.stops, axis=-1)
        decoded = Decoded(
            tokens=done.tokens.at[loop.step].set(token),
            logprobs=done.logprobs.at[loop.step].set(logprob),
            counts=done.counts + active,
            budget=jnp.where(stopped, 0, done.budget - active),
            stopped=done.stopped | stopped,
            routes=_with_step(done.routes, loop.step, routes),
        )
        return _Loop(loop.step + 1, filled, token, decoded)

    end = jax.lax.while_loop(unfinished, body, _Loop(jnp.int32(0), cache, rows.token, start))
    return end.cache, end.decoded


def _nothing(rows: Rows, steps: int, architecture: Architecture, record_routes: bool) -> Decoded:
    slots, experts = rows.token.shape[0], architecture.experts if record_routes else None
    return Decoded(
        tokens=jnp.zeros((steps, slots), jnp.int32),
        logprobs=jnp.zeros((steps, slots), jnp.float32),
        counts=jnp.zeros(slots, jnp.int32),
        budget=rows.budget,
        stopped=jnp.zeros(slots, jnp.bool_),
        routes=experts and jnp.zeros((steps, slots, architecture.num_layers, experts.per_token), jnp.int16),
    )


def _with_step(
    kept: Int[Array, "steps slots layers picked"] | None, step: Int[Array, ""], routes: Routes
) -> Int[Array, "steps slots layers picked"] | None:
    return None if kept is None or routes is None else kept.at[step].set(routes[:, 0])


@functools.partial(jax.jit, static_argnames=("architecture", "hardware", "dtype"))
def score(
    params: Params,
    token_ids: Int[Array, "1 time"],
    adapters: Int[Array, " 1"] | None = None,
    routes: Routes = None,
    *,
    architecture: Architecture,
    hardware: Hardware,
    dtype: str,
) -> Float[Array, " time"]:
    """Computes the log-probability at temperature 1 of the token after each position; the last entry means nothing.
    Of a model with experts ``routes`` take the place of what its routers choose.
    """
    params = _for_rows(params, adapters)
    length = jnp.full(1, token_ids.shape[1])
    targets = jnp.roll(token_ids, -1, axis=1)
    options: dict[str, Any] = {"dtype": jnp.dtype(dtype), "hardware": hardware, "routes": routes}
    with hardware.precise(dtype):
        hidden, *_ = prefill(params, architecture, token_ids, length, **options)
        logprobs, _ = token_logprobs(params, architecture, hidden, targets, 1.0, chunk=_SCORE_CHUNK, hardware=hardware)
    return logprobs[0]


def _for_rows(params: Params, adapters: Int[Array, " rows"] | None) -> Params:
    """Returns parameters in which each row has its own of the adapters that lie side by side: `Adapted.for_rows`."""
    if adapters is None:
        return params
    layers = [
        {key: w.for_rows(adapters) if isinstance(w, Adapted) else w for key, w in layer.items()}
        for layer in params["layers"]
    ]
    return {**params, "layers": tuple(layers)}


def place(tensors: Mapping[str, Any], *, architecture: Architecture, dtype: str, device: jax.Device) -> Params:
    """Puts tensors by Hugging Face name onto a device, as the parameters that the programs above take: one after the
    other, so that beside the parameters it has one tensor as it was given, and not a model more.
    """
    return from_hf_by_layer(tensors, architecture, functools.partial(on_device, dtype=dtype, device=device))
