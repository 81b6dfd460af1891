"""Tapered off-policy REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=topr``."""

    positive_weight: float = key(1.0, "weight where the reward is above 0", low=0)
    negative_weight: float = key(1.0, "weight where it is not", low=0)


@policy_losses.register("topr", Config=Config, bounds_step=True)
def topr(inputs: LossInputs, config: Config) -> TokenLoss:
    """−w₊·A·logπ for a trajectory with R > 0, else −w₋·sg(clip(ρ, 0, 1))·A·logπ, with ρ = π/π_behaviour per token.

    The raw reward R decides the side, whatever the advantage is. What went well is imitated without a ratio; what went
    badly is pushed away only as far as the policy still does it. ``positive_weight`` and
    ``negative_weight``: w₊ and w₋, 1 as in ROLL.

    The paper tapers by the ratio of the whole trajectory, this one, as ROLL's, by that of the token.

    Logged: ``clip_fraction``, tokens on the negative side whose ratio is above 1.

    Reference: Le Roux et al. 2025, https://arxiv.org/abs/2503.14286.
    """
    ratio = stop_gradient(inputs.ratio)
    positive = inputs.rewards > 0
    weight = jnp.where(positive, config.positive_weight, config.negative_weight * jnp.clip(ratio, 0.0, 1.0))
    clipped = (~positive & (ratio > 1)).astype(jnp.float32)
    return -weight * inputs.advantages * inputs.bounded_logprobs, {"clip_fraction": clipped}
