"""Truncated importance sampling."""

from __future__ import annotations

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.registry import policy_losses
from rljax.config import AlgorithmConfig


@policy_losses.register("tis")
def tis(
    inputs: LossInputs, config: AlgorithmConfig
) -> tuple[Float[Array, "batch time"], dict[str, Float[Array, "batch time"]]]:
    """−sg(clip(ρ, lo, hi))·A·logπ, with ρ = π/π_behaviour per token and sg = stop-gradient.

    Every token keeps a gradient; only its weight is bounded.

    Logged: ``clip_fraction``, tokens whose ratio lies outside [lo, hi].

    References: Espeholt et al. 2018 (IMPALA), https://arxiv.org/abs/1802.01561; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training".
    """
    ratio = stop_gradient(inputs.ratio)
    weight = jnp.clip(ratio, config.tis_low, config.tis_high)
    return -weight * inputs.advantages * inputs.logprobs, {"clip_fraction": (weight != ratio).astype(jnp.float32)}
