"""Losses of the routers of a model with experts, and metrics of how evenly the experts are used."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.config.algorithm import AlgorithmConfig
from rljax.learner.ratio_metrics import Sums, mean_of
from rljax.models.common.experts.routing import UNKNOWN, RouterSums, balance_loss, z_loss


def router_losses(
    routed: RouterSums, tokens: Float[Array, ""], algorithm: AlgorithmConfig
) -> tuple[Float[Array, ""], Sums]:
    """Computes what a microbatch adds to the loss, and the sums for `router_metrics`.

    The loss of balance is no sum over tokens: it is that of each microbatch, of all its devices, by its share of the
    tokens.

    Args:
        routed: sums over the microbatch.
        tokens: of the update.
        algorithm: with the weights of the losses.
    """
    here = jnp.sum(routed.probability[0])
    found = {"aux_loss": balance_loss(routed) * here / tokens, "z_loss": z_loss(routed, tokens)}
    loss = algorithm.router_aux_loss_coef * found["aux_loss"] + algorithm.router_z_loss_coef * found["z_loss"]
    recorded = {"recorded": routed.recorded, "differing": routed.differing} if algorithm.records_routes else {}
    return loss, found | recorded | {"load": routed.load}


def router_metrics(sums: Sums) -> Sums:
    """Returns the metrics of an update from the sums over its microbatches: the losses before their weights; the
    largest and the smallest load of an expert in any layer, 1 where all have the same; the share of the experts
    that got no token; and of the choices that engines recorded, those that the learner's own logits would not have
    made, NaN where none were. Nothing without experts.
    """
    if not sums:
        return {}
    load = sums["load"] / jnp.maximum(jnp.mean(sums["load"], axis=-1, keepdims=True), 1e-9)
    loads = {"load_max": jnp.max(load), "load_min": jnp.min(load), "unused": jnp.mean(load == 0)}
    if "recorded" in sums:
        loads["routes_differing"] = mean_of(jnp.sum(sums["differing"]), jnp.sum(sums["recorded"]))
    return {name: sums[name] for name in ("aux_loss", "z_loss")} | loads


def routes_known(routes: Int[Array, "row time layers picked"]) -> Float[Array, "row time"]:
    """Computes which share of the choices of each token's experts an engine has recorded, float32."""
    return jnp.mean(routes != UNKNOWN, axis=(-2, -1), dtype=jnp.float32)
