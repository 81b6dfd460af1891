"""Truncated importance sampling."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import ConfigError, key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=tis``."""

    low: float = key(0.0, "lower bound of the ratio", low=0)
    high: float = key(1.0, "upper bound of the ratio", low=0)

    def check(self, path: str) -> None:
        """Refuses bounds that cross."""
        if self.low > self.high:
            raise ConfigError(f"{path}.low={self.low}: above high={self.high}")


@policy_losses.register("tis", Config=Config, least_weight=lambda config: config.low, remedy="loss.low=0")
def tis(inputs: LossInputs, config: Config) -> TokenLoss:
    """−sg(clip(ρ, lo, hi))·A·logπ, with ρ = π/π_behaviour per token and sg = stop-gradient.

    Every token keeps a gradient; only its weight is bounded, by ``low`` and ``high``, 0 and 1 as
    in ROLL.

    Logged: ``clip_fraction``, tokens whose ratio lies outside [lo, hi].

    References: Espeholt et al. 2018 (IMPALA), https://arxiv.org/abs/1802.01561; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training".
    """
    ratio = stop_gradient(inputs.ratio)
    weight = jnp.clip(ratio, config.low, config.high)
    clipped = (weight != ratio).astype(jnp.float32)
    return -weight * inputs.advantages * inputs.bounded_logprobs, {"clip_fraction": clipped}
