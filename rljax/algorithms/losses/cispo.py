"""REINFORCE with clipped importance weights."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.losses.ppo import beyond
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=cispo``."""

    clip_low: float = key(1.0, "the weight is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.28, "the weight is clipped above at 1 + clip_high", low=0)
    use_unified_mask: bool = key(False, "tokens whose gradient ppo would clip away are left out")


@policy_losses.register(
    "cispo",
    Config=Config,
    least_weight=lambda config: 0.0 if config.use_unified_mask else 1 - config.clip_low,
    remedy="loss.clip_low=1 as in the paper, or loss.use_unified_mask=true",
)
def cispo(inputs: LossInputs, config: Config) -> TokenLoss:
    """−sg(clip(ρ, 1−ε_lo, 1+ε_hi))·A·logπ, with ρ = π/π_behaviour per token.

    No token loses its gradient, unless ``use_unified_mask`` zeroes those that ppo would clip: A > 0 with
    ρ > 1+ε_hi, and A < 0 with ρ < 1−ε_lo. The defaults of ``clip_low`` and ``clip_high``, 1 and 0.28,
    are Trinity-RFT's: as in the paper, the weight is bounded above alone. ROLL's are 0.1 and 0.1.

    Logged: ``clip_fraction``, tokens whose weight is clipped; ``mask_fraction`` where the mask is on.

    Reference: MiniMax 2025, https://arxiv.org/abs/2506.13585, equations 4 and 5; the mask: equations 6 and 7.
    """
    low, high = config.clip_low, config.clip_high
    ratio = stop_gradient(inputs.ratio)
    weight = jnp.clip(ratio, 1 - low, 1 + high)
    metrics = {"clip_fraction": (weight != ratio).astype(jnp.float32)}
    if config.use_unified_mask:
        masked = beyond(ratio, inputs.advantages, low, high)
        metrics["mask_fraction"] = masked
        weight = weight * (1 - masked)
    return -weight * inputs.advantages * inputs.bounded_logprobs, metrics
