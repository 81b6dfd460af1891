"""Token sampling: temperature, top-k, top-p, and a random stream of its own for every request.

Everything here works row by row, so that a request's tokens depend on its own logits, parameters and seed alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

_BLOCK = 128  # weights whose running sum is taken at once


def sample(
    logits: Float[Array, "rows vocabulary"],
    temperature: Float[Array, " rows"],
    top_k: Int[Array, " rows"],
    top_p: Float[Array, " rows"],
    uniforms: Float[Array, "rows 2"],
    *,
    truncate: bool,
) -> tuple[Int[Array, " rows"], Float[Array, " rows"]]:
    """Draws one token a row.

    Args:
        logits: float32, of the model.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: candidates kept; 0 keeps all. Ignored by greedy rows, as is `top_p`.
        top_p: nucleus mass of the candidates; 1 keeps all.
        uniforms: of `request_uniforms`.
        truncate: whether any row uses `top_k` or `top_p`. Static: without them the program is much cheaper.

    Returns:
        Tokens (int32) and their log-probabilities (float32, nats) in the distribution that was drawn from: temperature
        applied, truncation renormalised. Of greedy rows: in the raw distribution at temperature 1.
    """
    greedy = temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    if truncate:
        kept = truncated(scaled, top_k, top_p) | greedy[:, None]
        scaled = jnp.where(kept, scaled, -jnp.inf)
    highest = jnp.max(scaled, axis=-1)
    weights = jnp.exp(scaled - highest[:, None])
    drawn, total = _draw(weights, uniforms)
    tokens = jnp.where(greedy, jnp.argmax(scaled, axis=-1).astype(jnp.int32), drawn)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - highest - jnp.log(total)


def request_uniforms(seeds: UInt[Array, "rows 2"], indices: Int[Array, " rows"]) -> Float[Array, "rows 2"]:
    """Returns the two uniform numbers in [0, 1) that token ``indices[r]`` of the request with
    seed ``seeds[r]`` is drawn with.

    Counter-based (Threefry, Salmon et al. 2011): they depend on seed and index only, not on slot, neighbours or time.
    `seeds` holds the high and the low 32 bits.
    """

    def one(seed: jax.Array, index: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), index)
        return jax.random.bits(key, (2,), jnp.uint32)

    # 24 bits fill the mantissa of a float32 and cannot round up to 1
    return (jax.vmap(one)(seeds, indices) >> 8).astype(jnp.float32) * 2.0**-24


def truncated(
    scaled: Float[Array, "rows vocabulary"], top_k: Int[Array, " rows"], top_p: Float[Array, " rows"]
) -> Bool[Array, "rows vocabulary"]:
    """Returns which tokens remain candidates: the `top_k` most likely, then the fewest of
    these whose mass reaches `top_p`.

    Tokens as likely as the last one kept are kept too. top-p is taken of the distribution that top-k left, as in
    transformers and vLLM.
    """
    keys = _ordered(scaled)
    kept = keys >= _threshold(keys, jnp.ones_like(scaled), top_k.astype(jnp.float32))[:, None]
    kept |= (top_k <= 0)[:, None]
    weights = jnp.where(kept, jax.nn.softmax(scaled, axis=-1), 0.0)
    nucleus = keys >= _threshold(keys, weights, top_p * jnp.sum(weights, axis=-1))[:, None]
    return kept & (nucleus | (top_p >= 1)[:, None])


def _ordered(values: Float[Array, "rows vocabulary"]) -> UInt[Array, "rows vocabulary"]:
    # the bits of a float32, made to compare as unsigned integers in the order of the floats
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _threshold(
    keys: UInt[Array, "rows vocabulary"], weights: Float[Array, "rows vocabulary"], target: Float[Array, " rows"]
) -> UInt[Array, " rows"]:
    # The largest t for which the weights with key >= t reach the target, one bit at a time: exact, and 32 passes over
    # the vocabulary are much cheaper than a sort.
    def bit(i: jax.Array, found: jax.Array) -> jax.Array:
        candidate = found | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        mass = jnp.sum(jnp.where(keys >= candidate[:, None], weights, 0.0), axis=-1)
        return jnp.where(mass >= target, candidate, found)

    return jax.lax.fori_loop(0, 32, bit, jnp.zeros(keys.shape[0], jnp.uint32))


def _draw(
    weights: Float[Array, "rows vocabulary"], uniforms: Float[Array, "rows 2"]
) -> tuple[Int[Array, " rows"], Float[Array, " rows"]]:
    # First a block of tokens, then a token of the block, each by inverting its distribution function: one random number
    # for each of the two instead of one per token, and running sums over hundreds instead of the whole vocabulary.
    rows, vocabulary = weights.shape
    if vocabulary <= _BLOCK:  # XLA of jax 0.11 compiles no running sum of one number for GPUs
        return _invert(weights, uniforms[:, 1]), jnp.sum(weights, axis=-1)
    padded = jnp.pad(weights, ((0, 0), (0, -vocabulary % _BLOCK))).reshape(rows, -1, _BLOCK)
    masses = jnp.sum(padded, axis=-1)
    block = _invert(masses, uniforms[:, 0])
    inside = jnp.take_along_axis(padded, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _invert(inside, uniforms[:, 1]), jnp.sum(masses, axis=-1)


def _invert(weights: Float[Array, "rows n"], uniform: Float[Array, " rows"]) -> Int[Array, " rows"]:
    # strictly below the total, so that rounding can choose no index of weight 0
    sums = jnp.cumsum(weights, axis=-1)
    target = jnp.minimum(uniform * sums[:, -1], jnp.nextafter(sums[:, -1], 0.0))
    return jnp.argmax(sums > target[:, None], axis=-1).astype(jnp.int32)
