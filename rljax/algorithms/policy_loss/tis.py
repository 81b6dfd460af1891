"""Truncated importance sampling."""

from __future__ import annotations

import jax.numpy as jnp
from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig


@policy_losses.register("tis")
def tis(inputs: LossInputs, config: AlgorithmConfig) -> TokenLoss:
    """−sg(clip(ρ, lo, hi))·A·logπ, with ρ = π/π_behaviour per token and sg = stop-gradient.

    Every token keeps a gradient; only its weight is bounded, by ``tis_low`` and ``tis_high``, 0 and 1 as
    in ROLL.

    Logged: ``clip_fraction``, tokens whose ratio lies outside [lo, hi].

    References: Espeholt et al. 2018 (IMPALA), https://arxiv.org/abs/1802.01561; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training".
    """
    ratio = stop_gradient(inputs.ratio)
    weight = jnp.clip(ratio, config.tis_low, config.tis_high)
    clipped = (weight != ratio).astype(jnp.float32)
    return -weight * inputs.advantages * inputs.bounded_logprobs, {"clip_fraction": clipped}
