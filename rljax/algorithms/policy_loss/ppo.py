"""Clipped importance ratios."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.registry import policy_losses
from rljax.config import AlgorithmConfig


@policy_losses.register("ppo")
def ppo(
    inputs: LossInputs, config: AlgorithmConfig
) -> tuple[Float[Array, "batch time"], dict[str, Float[Array, "batch time"]]]:
    """−min(ρA, clip(ρ, 1−ε_lo, 1+ε_hi)·A), with ρ = π/π_behaviour per token.

    With ``dual_clip`` c, the loss of a token with A < 0 is at most −cA: a ratio far above 1 no longer dominates.

    Logged: ``clip_fraction``, tokens for which the clipped term is the one taken; ``dual_clip_fraction`` where on.

    References: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; asymmetric ε: Yu et al. 2025 (DAPO),
    https://arxiv.org/abs/2503.14476; dual clip: Ye et al. 2020, https://arxiv.org/abs/1912.09729, equation 5.
    """
    ratio, advantages = inputs.ratio, inputs.advantages
    unclipped = ratio * advantages
    clipped = jnp.clip(ratio, 1 - config.clip_low, 1 + config.clip_high) * advantages
    objective = jnp.minimum(unclipped, clipped)
    metrics = {"clip_fraction": (clipped < unclipped).astype(jnp.float32)}
    if config.dual_clip is not None:
        floor = jnp.where(advantages < 0, config.dual_clip * advantages, -jnp.inf)
        metrics["dual_clip_fraction"] = (objective < floor).astype(jnp.float32)
        objective = jnp.maximum(objective, floor)
    return -objective, metrics
