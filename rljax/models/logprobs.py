"""Log-probabilities of given tokens, in chunks: the logits of a whole batch never exist at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.models.architecture import Architecture
from rljax.models.transformer import Constrain, Params, output_head, unconstrained


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

    Args:
        params: of the model.
        architecture: of the model.
        hidden: what `hidden_states` returned.
        targets: the token that each position predicts (already shifted); the caller masks what means nothing.
        temperature: divides the logits; positive, for each token or for all.
        chunk: tokens whose logits exist at once.
        constrain: called on each chunk's logits, as ``logits``.

    Returns:
        Log-probabilities and entropies.
    """
    shape = targets.shape
    head = output_head(params, architecture).astype(hidden.dtype)
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), shape)

    @jax.checkpoint
    def score(rows: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, target, heat = rows
        logits = jnp.dot(x, head, preferred_element_type=jnp.float32)
        logits = constrain(logits, "logits") / heat[:, None]
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
        entropy = total - jnp.sum(jnp.exp(logits - total[:, None]) * logits, axis=-1)
        return chosen - total, entropy

    tokens = targets.size
    size = min(chunk, tokens)
    padding = -tokens % size

    def cut(x: jax.Array, fill: float) -> jax.Array:
        flat = x.reshape(tokens, *x.shape[2:])
        flat = jnp.pad(flat, [(0, padding)] + [(0, 0)] * (flat.ndim - 1), constant_values=fill)
        return flat.reshape(-1, size, *flat.shape[1:])

    logprobs, entropy = jax.lax.map(score, (cut(hidden, 0), cut(targets, 0), cut(temperature, 1)))
    return logprobs.reshape(-1)[:tokens].reshape(shape), entropy.reshape(-1)[:tokens].reshape(shape)
