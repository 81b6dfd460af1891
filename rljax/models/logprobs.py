"""Log-probabilities of given tokens, in pieces: the logits of a whole batch never exist at once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from rljax.models.architecture import Architecture
from rljax.models.transformer import Constrain, Params, unconstrained


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
    """Log-probability of each target and entropy of its distribution, in nats, float32.

    The forward pass goes through the time axis in steps of about `chunk` tokens. The backward pass goes through the
    vocabulary in as many steps, with all tokens: so every row of the head's gradient is made once, where steps over
    tokens would add up whole heads. Where all tokens are one chunk, their logits are kept and nothing is recomputed.

    Args:
        params: of the model.
        architecture: of the model.
        hidden: what `hidden_states` returned.
        targets: the token that each position predicts (already shifted); the caller masks what means nothing.
        temperature: divides the logits; positive, for each token or for all. No gradient flows to it.
        chunk: tokens whose logits exist at once.
        constrain: called on logits ``[batch, time, vocabulary]``, of some times or some of the vocabulary.

    Returns:
        Log-probabilities and entropies.
    """
    table = params["embedding"] if architecture.tie_embeddings else params["head"].T
    heat = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), targets.shape)
    return _logprobs(chunk, constrain, hidden, table.astype(hidden.dtype), targets, lax.stop_gradient(heat))


def _logits(x: jax.Array, table: jax.Array, constrain: Constrain) -> jax.Array:
    logits = lax.dot_general(x, table, (((2,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return constrain(logits, "logits")


def _score(logits: jax.Array, targets: jax.Array, heat: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probability, entropy and log of the partition sum of each token."""
    logits = logits / heat[..., None]
    highest = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(logits - highest)
    total = jnp.sum(weights, axis=-1)
    mean = jnp.sum(weights * (logits - highest), axis=-1) / total
    log_total = jnp.log(total)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - highest[..., 0]
    return chosen - log_total, log_total - mean, highest[..., 0] + log_total


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _logprobs(
    chunk: int, constrain: Constrain, hidden: jax.Array, table: jax.Array, targets: jax.Array, heat: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _forward(chunk, constrain, hidden, table, targets, heat)[0]


def _forward(
    chunk: int, constrain: Constrain, hidden: jax.Array, table: jax.Array, targets: jax.Array, heat: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
    batch, time = targets.shape
    if batch * time <= chunk:
        logits = _logits(hidden, table, constrain)
        logprobs, entropy, log_total = _score(logits, targets, heat)
        return (logprobs, entropy), (hidden, table, targets, heat, entropy, log_total, logits)
    # Along time, not along all tokens: the batch axis may be laid over devices.
    steps = -(-time // max(1, chunk // batch))
    size = -(-time // steps)

    def cut(x: jax.Array, fill: float) -> jax.Array:
        spare = [(0, 0), (0, steps * size - time)] + [(0, 0)] * (x.ndim - 2)
        return jnp.pad(x, spare, constant_values=fill).reshape(batch, steps, size, *x.shape[2:]).swapaxes(0, 1)

    def step(rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return _score(_logits(rows[0], table, constrain), rows[1], rows[2])

    parts = lax.map(step, (cut(hidden, 0), cut(targets, 0), cut(heat, 1)))
    whole = (part.swapaxes(0, 1).reshape(batch, steps * size)[:, :time] for part in parts)
    logprobs, entropy, log_total = whole
    return (logprobs, entropy), (hidden, table, targets, heat, entropy, log_total, None)


def _backward(
    chunk: int, constrain: Constrain, residuals: tuple[Any, ...], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, None, None]:
    hidden, table, targets, heat, entropy, log_total, kept = residuals
    d_logprobs, d_entropy = (cotangent[..., None] / heat[..., None] for cotangent in cotangents)

    def gradients(logits: jax.Array, rows: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Gradient of the hidden states through some rows of the table, and gradient of these rows."""
        log_p = logits / heat[..., None] - log_total[..., None]
        chosen = jnp.where(ids == targets[..., None], d_logprobs, 0.0)
        d_logits = chosen - jnp.exp(log_p) * (d_logprobs + d_entropy * (log_p + entropy[..., None]))
        d_logits = constrain(d_logits, "logits").astype(hidden.dtype)
        d_hidden = lax.dot_general(d_logits, rows, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return d_hidden, lax.dot_general(d_logits, hidden, (((0, 1), (0, 1)), ((), ())))

    if kept is not None:
        d_hidden, d_table = gradients(kept, table, jnp.arange(table.shape[0]))
        return d_hidden.astype(hidden.dtype), d_table, None, None
    return *_vocabulary_steps(chunk, constrain, hidden, table, gradients), None, None


def _vocabulary_steps(
    chunk: int, constrain: Constrain, hidden: jax.Array, table: jax.Array, gradients: Any
) -> tuple[jax.Array, jax.Array]:
    tokens, vocabulary = hidden.shape[0] * hidden.shape[1], table.shape[0]
    steps = min(-(-tokens // chunk), vocabulary)
    size = vocabulary // steps
    # Step j has the rows j, j + steps, ...: a vocabulary that is laid over devices stays so within every step.
    strided = table[: size * steps].reshape(size, steps, -1)

    def step(carry: tuple[jax.Array, jax.Array], number: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        d_hidden, d_strided = carry
        rows = lax.dynamic_index_in_dim(strided, number, axis=1, keepdims=False)
        ids = jnp.arange(size) * steps + number
        more, d_rows = gradients(_logits(hidden, rows, constrain), rows, ids)
        return (d_hidden + more, lax.dynamic_update_index_in_dim(d_strided, d_rows, number, axis=1)), None

    start = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(strided))
    (d_hidden, d_strided), _ = lax.scan(step, start, jnp.arange(steps))
    d_table = d_strided.reshape(size * steps, -1)
    if size * steps < vocabulary:
        rest = table[size * steps :]
        ids = jnp.arange(size * steps, vocabulary)
        more, d_rest = gradients(_logits(hidden, rest, constrain), rest, ids)
        d_hidden, d_table = d_hidden + more, jnp.concatenate([d_table, d_rest])
    return d_hidden.astype(hidden.dtype), d_table


_logprobs.defvjp(_forward, _backward)
