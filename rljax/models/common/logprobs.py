"""Log-probabilities of given tokens, computed in chunks of the vocabulary: the logits of a
whole batch never exist at once.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.einsum import einsum_fp32, product_in
from rljax.models.common.embedding import own_rows
from rljax.models.common.hardware import ACTIVATIONS, CPU, TABLE, Hardware
from rljax.models.common.params import Params

_CACHED_LOGITS = 2**19  # logits of one step that stay in the cache of a CPU core
_LOWEST = -1e30  # finite, so that 0 times it is 0
_Gradients = tuple[jax.Array, jax.Array]


def token_logprobs(
    params: Params,
    architecture: Architecture,
    hidden: Float[Array, "batch time hidden"],
    targets: Int[Array, "batch time"],
    temperature: Float[Array, "batch time"] | float,
    *,
    chunk: int,
    hardware: Hardware = CPU,
) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
    """Computes the log-probability of each target and the entropy of its distribution, in nats, float32.

    Both passes go through the vocabulary in steps, with all tokens at once (an online softmax, as in Milakov &
    Gimelshein 2018): so every row of the head's gradient is made once, where steps over tokens would add up whole
    heads. Where all tokens fit into one chunk their logits are kept; otherwise the backward pass recomputes them.

    Args:
        params: of the model.
        architecture: of the model.
        hidden: what `hidden_states` returned.
        targets: the token that each position predicts (already shifted); the caller masks what means nothing.
        temperature: divides the logits; positive, for each token or for all. No gradient flows to it.
        chunk: tokens of a device whose logits may exist at once, or the same number of logits of more tokens.
        hardware: that it is computed on. A vocabulary that is cut over devices stays so: each computes the logits of
            its own words.

    Returns:
        Log-probabilities and entropies.
    """
    table = params["embedding"] if architecture.tie_embeddings else params["head"].T
    temperatures = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), targets.shape)
    laid = _Layout(hardware, chunk, (*targets.shape, table.shape[0]), hidden.shape[-1], table.dtype)
    return _logprobs(laid, hidden, table, targets, lax.stop_gradient(temperatures))


class _Layout(NamedTuple):
    """Layout of the work over the devices: tokens over some mesh axes, the vocabulary over others."""

    hardware: Hardware
    chunk: int
    logits: tuple[int, int, int]  # batch, time, vocabulary
    width: int
    dtype: jnp.dtype  # of the head, in which its gradient is computed and summed

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """Mesh axes of the batch, of the time and of the vocabulary."""
        return self.hardware.axes(ACTIVATIONS["logits"], self.logits)

    @property
    def columns(self) -> tuple[str, ...]:
        """Mesh axes over which the head's gradient is cut while it is summed: its columns', if they cut the batch."""
        columns = self.hardware.axes(TABLE, (self.logits[2], self.width))[1]
        return columns if set(columns) <= set(self.axes[0]) else ()

    def steps(self, tokens: int, vocabulary: int) -> int:
        """Returns into how many steps a device goes through its words, for its tokens."""
        steps = -(-tokens * vocabulary // (self.chunk * self.logits[2]))
        if self.hardware.platform == "cpu":
            steps = max(steps, tokens * vocabulary // _CACHED_LOGITS)
        return min(steps, vocabulary)

    def keeps(self, tokens: int, vocabulary: int) -> bool:
        """Returns whether a device keeps its logits for the backward pass."""
        return tokens * vocabulary <= self.chunk * self.logits[2]


class _Pieces(NamedTuple):
    """The rows of the head, split over the steps.

    Step j has rows j, j + steps, ... The remainder of the division, fewer rows than there are steps, comes last.
    """

    strided: Float[Array, "size steps hidden"]
    rest: Float[Array, "rest hidden"]


def _split_rows(table: jax.Array, steps: int) -> _Pieces:
    whole = table.shape[0] // steps * steps
    return _Pieces(table[:whole].reshape(-1, steps, table.shape[1]), table[whole:])


def _logits(x: jax.Array, rows: jax.Array, hardware: Hardware) -> Float[Array, "some batch time"]:
    # Vocabulary first: so no product of either pass needs its operands transposed, which XLA on CPU does by copying.
    return einsum_fp32("vh,bth->vbt", rows, x, hardware)


class _Softmax(NamedTuple):
    """Running sums of an online softmax after some of the vocabulary, with x the scaled logits of each token."""

    highest: Float[Array, "batch time"]  # max x
    total: Float[Array, "batch time"]  # sum of exp(x - highest)
    weighted: Float[Array, "batch time"]  # sum of exp(x - highest) (x - highest)

    def fold(self, logits: Float[Array, "some batch time"]) -> _Softmax:
        """Returns the sums with more of the vocabulary added."""
        highest = jnp.maximum(self.highest, jnp.max(logits, axis=0))
        lower = logits - highest
        weights = jnp.exp(lower)
        drop = self.highest - highest
        scale = jnp.exp(drop)
        return _Softmax(
            highest,
            scale * self.total + jnp.sum(weights, axis=0),
            scale * (self.weighted + drop * self.total) + jnp.sum(weights * lower, axis=0),
        )

    def merged(self, axes: tuple[str, ...]) -> _Softmax:
        """Returns the sums over the vocabularies of all devices along some mesh axes."""
        if not axes:
            return self
        highest = lax.pmax(self.highest, axes)
        drop = self.highest - highest
        scale = jnp.exp(drop)
        total = lax.psum(scale * self.total, axes)
        return _Softmax(highest, total, lax.psum(scale * (self.weighted + drop * self.total), axes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(
    laid: _Layout, hidden: jax.Array, table: jax.Array, targets: jax.Array, temperatures: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _forward(laid, hidden, table, targets, temperatures)[0]


def _forward(
    laid: _Layout, hidden: jax.Array, table: jax.Array, targets: jax.Array, temperatures: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
    batch, time, words = laid.axes
    tokens, table = P(batch, time), table.astype(hidden.dtype)
    inputs = (P(batch, time, None), P(words, None), tokens, tokens)
    outputs = (tokens, tokens, tokens, P(None, words, batch, time))
    on_device = laid.hardware.by_device(functools.partial(_forward_part, laid), inputs, outputs)
    logprobs, entropy, log_total, kept = on_device(hidden, table, targets, temperatures)
    return (logprobs, entropy), (hidden, table, targets, temperatures, entropy, log_total, kept)


def _forward_part(
    laid: _Layout, hidden: jax.Array, table: jax.Array, targets: jax.Array, temperatures: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Computes log-probabilities and entropies of a device's tokens, the logarithm of their softmax's sum, and logits
    ``[step, some, batch, time]`` of its words where they are kept.
    """
    steps, keep = (take(targets.size, table.shape[0]) for take in (laid.steps, laid.keeps))
    pieces, words = _split_rows(table, steps), laid.axes[2]

    def logits_of(rows: jax.Array) -> Float[Array, "some batch time"]:
        return _logits(hidden, rows, laid.hardware)

    def step(softmax: _Softmax, number: jax.Array) -> tuple[_Softmax, jax.Array | None]:
        logits = logits_of(lax.dynamic_index_in_dim(pieces.strided, number, 1, keepdims=False))
        return softmax.fold(logits / temperatures), logits if keep else None

    nothing = jnp.zeros(targets.shape, jnp.float32)
    softmax, kept = lax.scan(step, _Softmax(nothing + _LOWEST, nothing, nothing), jnp.arange(steps))
    if pieces.rest.size:
        softmax = softmax.fold(logits_of(pieces.rest) / temperatures)
    softmax = softmax.merged(words)
    rows = jnp.take(table, own_rows(targets, table.shape[0], words), axis=0, mode="fill", fill_value=0)
    chosen = jnp.sum(hidden.astype(jnp.float32) * rows.astype(jnp.float32), axis=-1) / temperatures
    chosen = lax.psum(chosen, words) if words else chosen
    log_total = softmax.highest + jnp.log(softmax.total)
    entropy = jnp.log(softmax.total) - softmax.weighted / softmax.total
    return chosen - log_total, entropy, log_total, kept


def _backward(
    laid: _Layout, residuals: tuple[Any, ...], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, None, None]:
    batch, time, words = laid.axes
    tokens, hidden, table = P(batch, time), P(batch, time, None), P(words, None)
    inputs = (hidden, table, tokens, tokens, tokens, tokens, P(None, words, batch, time), tokens, tokens)
    outputs = (hidden, P(words, laid.columns))
    on_device = laid.hardware.by_device(functools.partial(_backward_part, laid), inputs, outputs)
    return (*on_device(*residuals, *cotangents), None, None)


def _backward_part(
    laid: _Layout,
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    temperatures: jax.Array,
    entropy: jax.Array,
    log_total: jax.Array,
    kept: jax.Array | None,
    *cotangents: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Computes the gradients of a device's hidden states and of its words."""
    d_logprobs, d_entropy = (cotangent / temperatures for cotangent in cotangents)
    steps = laid.steps(targets.size, table.shape[0])
    pieces, (batch, time, words) = _split_rows(table, steps), laid.axes
    places = own_rows(targets, table.shape[0], words)

    def gradients(logits: jax.Array, rows: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the gradient of the hidden states ``[hidden, batch, time]`` through some
        rows, and that of these rows.
        """
        log_p = logits / temperatures - log_total
        chosen = jnp.where(ids[:, None, None] == places, d_logprobs, 0.0)
        d_logits = chosen - jnp.exp(log_p) * (d_logprobs + d_entropy * (log_p + entropy))
        d_logits = d_logits.astype(hidden.dtype)
        d_hidden = einsum_fp32("vh,vbt->hbt", rows, d_logits, laid.hardware)
        return d_hidden, product_in(laid.dtype, d_logits, hidden, (((1, 2), (0, 1)), ((), ())), laid.hardware)

    def step(carry: _Gradients, inputs: tuple[jax.Array, jax.Array | None]) -> tuple[_Gradients, None]:
        number, logits = inputs
        rows = lax.dynamic_index_in_dim(pieces.strided, number, 1, keepdims=False)
        logits = _logits(hidden, rows, laid.hardware) if logits is None else logits
        more, d_rows = gradients(logits, rows, jnp.arange(rows.shape[0]) * steps + number)
        return (carry[0] + more, lax.dynamic_update_index_in_dim(carry[1], d_rows, number, 1)), None

    start = (jnp.zeros((hidden.shape[2], *targets.shape), jnp.float32), jnp.zeros(pieces.strided.shape, laid.dtype))
    (d_hidden, d_strided), _ = lax.scan(step, start, (jnp.arange(steps), kept))
    d_table = d_strided.reshape(-1, table.shape[1])
    if pieces.rest.size:
        ids = jnp.arange(d_table.shape[0], table.shape[0])
        more, d_rest = gradients(_logits(hidden, pieces.rest, laid.hardware), pieces.rest, ids)
        d_hidden, d_table = d_hidden + more, jnp.concatenate([d_table, d_rest])
    d_hidden = lax.psum(d_hidden, words) if words else d_hidden
    if laid.columns:
        d_table = lax.psum_scatter(d_table, laid.columns, scatter_dimension=1, tiled=True)
    rest = tuple(axis for axis in batch + time if axis not in laid.columns)
    d_table = lax.psum(d_table, rest) if rest else d_table
    return jnp.moveaxis(d_hidden, 0, -1).astype(hidden.dtype), d_table


_logprobs.defvjp(_forward, _backward)
