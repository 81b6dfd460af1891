"""Log-probabilities of given tokens, computed in chunks of the vocabulary: the logits of a
whole batch never exist at once.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.einsum import einsum_fp32
from rljax.models.common.transformer import Constrain, Params, unconstrained

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
    constrain: Constrain = unconstrained,
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
        chunk: tokens whose logits may exist at once, or the same number of logits of more tokens.
        constrain: called on logits ``[batch, time, vocabulary]`` of some of the vocabulary.

    Returns:
        Log-probabilities and entropies.
    """
    table = params["embedding"] if architecture.tie_embeddings else params["head"].T
    temperatures = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), targets.shape)
    return _logprobs(chunk, constrain, hidden, table.astype(hidden.dtype), targets, lax.stop_gradient(temperatures))


class _Pieces(NamedTuple):
    """The rows of the head, split over the steps.

    Step j has rows j, j + steps, ...: a vocabulary that is sharded over devices stays so within every step. The
    remainder of the division, fewer rows than there are steps, comes last.
    """

    strided: Float[Array, "size steps hidden"]
    rest: Float[Array, "rest hidden"]


def _split_rows(table: jax.Array, steps: int) -> _Pieces:
    whole = table.shape[0] // steps * steps
    return _Pieces(table[:whole].reshape(-1, steps, table.shape[1]), table[whole:])


def _steps(tokens: int, vocabulary: int, chunk: int) -> int:
    steps = -(-tokens // chunk)
    if jax.default_backend() == "cpu":
        steps = max(steps, tokens * vocabulary // _CACHED_LOGITS)
    return min(steps, vocabulary)


def _constrained(logits: Float[Array, "some batch time"], constrain: Constrain) -> Float[Array, "some batch time"]:
    return jnp.moveaxis(constrain(jnp.moveaxis(logits, 0, -1), "logits"), -1, 0)


def _logits(x: jax.Array, rows: jax.Array, constrain: Constrain) -> Float[Array, "some batch time"]:
    # Vocabulary first: so no product of either pass needs its operands transposed, which XLA on CPU does by copying.
    logits = einsum_fp32("vh,bth->vbt", rows, x)
    return _constrained(logits, constrain)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _logprobs(
    chunk: int, constrain: Constrain, hidden: jax.Array, table: jax.Array, targets: jax.Array, temperatures: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _forward(chunk, constrain, hidden, table, targets, temperatures)[0]


def _forward(
    chunk: int, constrain: Constrain, hidden: jax.Array, table: jax.Array, targets: jax.Array, temperatures: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
    steps = _steps(targets.size, table.shape[0], chunk)
    pieces = _split_rows(table, steps)
    keep = targets.size <= chunk

    def step(softmax: _Softmax, number: jax.Array) -> tuple[_Softmax, jax.Array | None]:
        logits = _logits(hidden, lax.dynamic_index_in_dim(pieces.strided, number, 1, keepdims=False), constrain)
        return softmax.fold(logits / temperatures), logits if keep else None

    nothing = jnp.zeros(targets.shape, jnp.float32)
    softmax, kept = lax.scan(step, _Softmax(nothing + _LOWEST, nothing, nothing), jnp.arange(steps))
    if pieces.rest.size:
        softmax = softmax.fold(_logits(hidden, pieces.rest, constrain) / temperatures)
    chosen = jnp.sum(hidden.astype(jnp.float32) * table[targets].astype(jnp.float32), axis=-1) / temperatures
    log_total = softmax.highest + jnp.log(softmax.total)
    entropy = jnp.log(softmax.total) - softmax.weighted / softmax.total
    return (chosen - log_total, entropy), (hidden, table, targets, temperatures, entropy, log_total, kept)


def _backward(
    chunk: int, constrain: Constrain, residuals: tuple[Any, ...], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, None, None]:
    hidden, table, targets, temperatures, entropy, log_total, kept = residuals
    d_logprobs, d_entropy = (cotangent / temperatures for cotangent in cotangents)
    steps = _steps(targets.size, table.shape[0], chunk)
    pieces = _split_rows(table, steps)

    def gradients(logits: jax.Array, rows: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the gradient of the hidden states ``[hidden, batch, time]`` through some
        rows, and that of these rows.
        """
        log_p = logits / temperatures - log_total
        chosen = jnp.where(ids[:, None, None] == targets, d_logprobs, 0.0)
        d_logits = chosen - jnp.exp(log_p) * (d_logprobs + d_entropy * (log_p + entropy))
        d_logits = _constrained(d_logits, constrain).astype(hidden.dtype)
        d_hidden = einsum_fp32("vh,vbt->hbt", rows, d_logits)
        return d_hidden, lax.dot_general(d_logits, hidden, (((1, 2), (0, 1)), ((), ())))

    def step(carry: _Gradients, inputs: tuple[jax.Array, jax.Array | None]) -> tuple[_Gradients, None]:
        number, logits = inputs
        rows = lax.dynamic_index_in_dim(pieces.strided, number, 1, keepdims=False)
        logits = _logits(hidden, rows, constrain) if logits is None else logits
        more, d_rows = gradients(logits, rows, jnp.arange(rows.shape[0]) * steps + number)
        return (carry[0] + more, lax.dynamic_update_index_in_dim(carry[1], d_rows, number, 1)), None

    start = (jnp.zeros((hidden.shape[2], *targets.shape), jnp.float32), jnp.zeros_like(pieces.strided))
    (d_hidden, d_strided), _ = lax.scan(step, start, (jnp.arange(steps), kept))
    d_table = d_strided.reshape(-1, table.shape[1])
    if pieces.rest.size:
        ids = jnp.arange(d_table.shape[0], table.shape[0])
        more, d_rest = gradients(_logits(hidden, pieces.rest, constrain), pieces.rest, ids)
        d_hidden, d_table = d_hidden + more, jnp.concatenate([d_table, d_rest])
    return jnp.moveaxis(d_hidden, 0, -1).astype(hidden.dtype), d_table, None, None


_logprobs.defvjp(_forward, _backward)
