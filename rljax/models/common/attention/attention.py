"""Attention within segments: one function, and a body for each kind of hardware.

A query sees the keys of its own segment that do not come after it, and those of the prompt that its segment shares with
others; in a layer with a sliding window the last of them. Packed rows therefore behave like separate ones.

Rows are cut over the mesh axes of the batch, heads over `tensor`: no device needs another's. Along `sequence` a device
holds some of a row's queries, and gathers all of its keys and values: with the few key-value heads of today's models
they are a small part of a layer's activations, one collective overlaps with the projections before it, every body
stays as it is, and no number of heads limits the axis. A ring would save memory alone, and not where it is short.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from rljax.models.common.attention.blockwise import blockwise_attention
from rljax.models.common.attention.dense import dense_attention
from rljax.models.common.attention.spans import Spans
from rljax.models.common.attention.splash import block_size, splash_attention, splash_kernel, why_no_splash
from rljax.models.common.attention.triton import triton_attention, why_no_triton
from rljax.models.common.hardware import ACTIVATIONS, Hardware

DENSE_ROW = 256
"""Tokens of the longest row that a CPU computes with a quarter of its scores at once: longer ones are slower so."""


class Window(NamedTuple):
    """Sliding window of a layer: one of the model's, which may be known only when the program runs.

    Attributes:
        sizes: the windows of the model's layers, each once, in tokens; 0: none.
        which: number of the layer's in them.
    """

    sizes: tuple[int, ...] = (0,)
    which: int | Int[Array, ""] = 0

    def of(self, spans: Spans) -> Spans:
        """Returns what queries see through it."""
        if isinstance(self.which, int):
            return spans.within(self.sizes[self.which])
        widest = spans.last.shape[1] + 1  # no window
        return spans.within(jnp.asarray([size or widest for size in self.sizes], jnp.int32)[self.which])


WHOLE = Window()
"""No window: everything before is seen."""


class Body(NamedTuple):
    """The body that attention gets, and why it is not the platform's kernel, where there is one."""

    name: str
    reason: str = ""


def attention(
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    spans: Spans,
    hardware: Hardware,
    window: Window = WHOLE,
) -> Float[Array, "batch time heads head_dim"]:
    """Computes causal attention within each segment of each row, scaled by 1/sqrt(head_dim).

    Args:
        query: queries, already rotated. Head h reads key-value head ``h // (heads / kv_heads)``.
        key: keys, already rotated.
        value: values.
        spans: what the queries see, as `causal_spans` makes them. What padding sees means nothing, and is finite.
        hardware: that it is computed on.
        window: of the layer.

    Returns:
        Attended values in the dtype of `query`.
    """
    name = body_for(query, hardware, spans.before is not None).name
    return attended_by(name, query, key, value, spans, hardware, window)


def body_for(query: Float[Array, "batch time heads head_dim"], hardware: Hardware, shared: bool = False) -> Body:
    """Returns the body that computes attention of such queries, whose segments may share prompts: of them shape and
    dtype alone are read.
    """
    if shared and hardware.platform != "cpu":
        return Body("blockwise", "the kernel knows no prompts that sequences share: learner.share_prompts=False")
    if hardware.platform == "tpu":
        reason = why_no_splash(query)
        return Body("blockwise", reason) if reason else Body("splash")
    if hardware.platform == "gpu":
        reason = why_no_triton(query, hardware)
        return Body("blockwise", reason) if reason else Body("triton")
    cut = hardware.axes(ACTIVATIONS["heads"], query.shape)[1]
    return Body("dense" if query.shape[1] <= DENSE_ROW and not cut else "blockwise")


def attended_by(
    name: str,
    query: Float[Array, "batch time heads head_dim"],
    key: Float[Array, "batch time kv_heads head_dim"],
    value: Float[Array, "batch time kv_heads head_dim"],
    spans: Spans,
    hardware: Hardware,
    window: Window = WHOLE,
    *,
    interpret: bool = False,
) -> Float[Array, "batch time heads head_dim"]:
    """Computes `attention` by the body of that name; `interpret` runs kernels step by step on any device, for tests.

    Raises:
        ValueError: segments share prompts, and the body is a kernel, which knows none.
    """
    if spans.before is not None and name in ("splash", "triton"):
        raise ValueError(f"{name} knows no prompts that segments share")
    heads = hardware.parts(hardware.axes(ACTIVATIONS["heads"], query.shape)[2])
    copies = math.lcm(key.shape[2], heads) // key.shape[2]
    if copies > 1:  # more devices than key-value heads: those that share one hold a copy each
        key, value = (jnp.repeat(x, copies, axis=2) for x in (key, value))
    if name == "splash":
        # The kernel's mask is made when it is compiled: one for each window, of which a layer runs its own.
        masked = [functools.partial(_by_splash, hardware, interpret, size) for size in window.sizes]
        return lax.switch(window.which, masked, query, key, value, spans)
    spans = window.of(spans)
    compute = {
        "dense": functools.partial(dense_attention, hardware=hardware),
        "blockwise": functools.partial(blockwise_attention, hardware=hardware),
        "triton": functools.partial(triton_attention, interpret=interpret),
    }[name]
    batch, time, by_head, _ = hardware.axes(ACTIVATIONS["heads"], query.shape)
    tensor, tokens = P(batch, time, by_head, None), P(batch, time)

    def part(query: jax.Array, key: jax.Array, value: jax.Array, spans: Spans) -> jax.Array:
        return compute(query, _whole(key, time), _whole(value, time), spans)

    return hardware.by_device(part, (tensor, tensor, tensor, tokens), tensor)(query, key, value, spans)


def _by_splash(
    hardware: Hardware,
    interpret: bool,
    window: int,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    spans: Spans,
) -> jax.Array:
    batch, time, heads, _ = hardware.axes(ACTIVATIONS["heads"], query.shape)
    shards, length = hardware.parts(time), query.shape[1]
    more = -length % (shards * block_size(-(-length // shards)))
    query, key, value = (jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))) for x in (query, key, value))
    spans = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, more)), constant_values=-1), spans)
    local = query.shape[2] // hardware.parts(heads)
    kernel = splash_kernel(query.shape[1], key.shape[1], local, shards, interpret, window)
    tensor, tokens = P(batch, time, heads, None), P(batch, time)
    specs = kernel.manual_sharding_spec(NamedSharding(hardware.mesh, P(None, time))) if hardware.mesh else None

    def part(query: jax.Array, key: jax.Array, value: jax.Array, spans: Spans, kernel: object) -> jax.Array:
        key, value, segments = (_whole(x, time) for x in (key, value, spans.first))
        return splash_attention(query, key, value, spans, segments, kernel)

    attended = hardware.by_device(part, (tensor, tensor, tensor, tokens, specs), tensor)
    return attended(query, key, value, spans, kernel)[:, :length]


def _whole(x: jax.Array, time: tuple[str, ...]) -> jax.Array:
    return lax.all_gather(x, time, axis=1, tiled=True) if time else x
