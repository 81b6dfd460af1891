"""Router of a layer of experts: which experts a token gets, with what weight, and what is counted of it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from rljax.models.common.architecture import Experts
from rljax.models.common.einsum import einsum_fp32
from rljax.models.common.hardware import ACTIVATIONS, CPU, Hardware


class Routing(NamedTuple):
    """Choice of a layer's router for each token.

    Attributes:
        logits: of all experts, float32.
        chosen: int32, the experts that a token gets, the likeliest first.
        gates: float32, what the output of each of them is multiplied by.
        likeliest: int32, the experts that the logits choose: `chosen`, but where a recorded choice is replayed.
    """

    logits: Float[Array, "batch time experts"]
    chosen: Int[Array, "batch time picked"]
    gates: Float[Array, "batch time picked"]
    likeliest: Int[Array, "batch time picked"]


class RouterSums(NamedTuple):
    """Sums over tokens of what the routers of all layers did, float32.

    Attributes:
        load: tokens that each expert got.
        probability: of each expert.
        squared_z: squares of log Σ exp of the logits.
        recorded: choices of an expert that an engine recorded.
        differing: of these, experts that the logits do not choose.
    """

    load: Float[Array, "*layers experts"]
    probability: Float[Array, "*layers experts"]
    squared_z: Float[Array, "*layers"]
    recorded: Float[Array, "*layers"]
    differing: Float[Array, "*layers"]


UNKNOWN = -1
"""Entry of a recorded choice that nobody recorded."""


def route(
    x: Float[Array, "batch time hidden"],
    router: Float[Array, "hidden experts"],
    experts: Experts,
    hardware: Hardware = CPU,
    replayed: Int[Array, "batch time picked"] | None = None,
) -> Routing:
    """Chooses the experts of each token. Logits, probabilities and gates are float32, whatever the dtype of `x`.

    Gates are the probabilities of the chosen ones among all experts, divided by their sum where ``experts.normalised``.
    A choice that is ``replayed`` takes the place of the router's, but where it is `UNKNOWN`: its gates are those of
    these logits, so that the router learns from it.
    """
    logits = einsum_fp32("bth,he->bte", x, router, hardware)
    batch, time, _ = hardware.axes(ACTIVATIONS["hidden"], x.shape)
    best = hardware.by_device(
        lambda logits: jax.lax.top_k(logits, experts.per_token)[1], P(batch, time, None), P(batch, time, None)
    )  # XLA on a CPU would gather the logits of all devices for it
    chosen = likeliest = best(jax.lax.stop_gradient(logits))
    if replayed is not None:
        unknown = jnp.any(replayed == UNKNOWN, axis=-1, keepdims=True)
        chosen = jnp.where(unknown, likeliest, replayed.astype(likeliest.dtype))
    # A product, and not a lookup: the gradient of that is a scatter.
    gates = jnp.einsum("bte,btke->btk", jax.nn.softmax(logits), jax.nn.one_hot(chosen, experts.count))
    if experts.normalised:
        gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
    return Routing(logits, chosen, gates, likeliest)


def router_sums(
    routing: Routing, counted: Bool[Array, "batch time"], recorded: Int[Array, "batch time picked"] | None = None
) -> RouterSums:
    """Sums what a router did, over the tokens that are counted: padding is not. ``recorded`` choices are compared with
    those of the logits; None: there are none.
    """
    known = jnp.zeros_like(routing.chosen) if recorded is None else (recorded != UNKNOWN) & counted[..., None]
    found = jnp.full_like(routing.chosen, UNKNOWN) if recorded is None else recorded
    missed = known & ~jnp.any(found[..., :, None] == routing.likeliest[..., None, :], axis=-1)
    experts, one = routing.logits.shape[-1], counted.astype(jnp.float32)
    chosen = jnp.sum(jax.nn.one_hot(routing.chosen, experts), axis=-2)
    return RouterSums(
        load=jnp.einsum("bte,bt->e", chosen, one),
        probability=jnp.einsum("bte,bt->e", jax.nn.softmax(routing.logits), one),
        squared_z=jnp.sum(jax.nn.logsumexp(routing.logits, axis=-1) ** 2 * one),
        recorded=jnp.sum(known, dtype=jnp.float32),
        differing=jnp.sum(missed, dtype=jnp.float32),
    )


def spread_routes(tokens: int, layers: int, experts: Experts) -> Int[np.ndarray, "tokens layers picked"]:
    """Returns a choice of experts for so many tokens, int16, that uses all of them evenly: whatever logits say, the
    same everywhere.
    """
    first = experts.per_token * (np.arange(tokens)[:, None] + np.arange(layers))
    return ((first[..., None] + np.arange(experts.per_token)) % experts.count).astype(np.int16)


def balance_loss(sums: RouterSums) -> Float[Array, ""]:
    """Computes E · Σ_e f_e · P_e of each layer, and the mean over the layers: f_e is the share of the tokens that
    expert e got, P_e its mean probability. It is k, the experts of a token, where all are used evenly.

    Reference: Fedus et al. 2021, https://arxiv.org/abs/2101.03961, equations 4 to 6, with k experts a token as
    transformers' ``load_balancing_loss_func`` counts them.
    """
    tokens = jnp.maximum(jnp.sum(sums.probability, axis=-1, keepdims=True), 1)
    shares = jax.lax.stop_gradient(sums.load) / tokens * sums.probability / tokens
    return jnp.mean(sums.load.shape[-1] * jnp.sum(shares, axis=-1))


def z_loss(sums: RouterSums, tokens: Float[Array, ""]) -> Float[Array, ""]:
    """Computes the mean over tokens and layers of (log Σ exp of the router's logits)².

    Reference: Zoph et al. 2022, https://arxiv.org/abs/2202.08906, equation 5.
    """
    return jnp.mean(sums.squared_z) / jnp.maximum(tokens, 1)
