"""Policy gradient inside a range of ratios."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=sppo``."""

    epsilon: float = key(0.3, "ratios from 1/(1 + ε) to 1 + ε are trained", low=0, low_open=True)


@policy_losses.register("sppo", Config=Config, bounds_step=True, weighs_tokens=False)
def sppo(inputs: LossInputs, config: Config) -> TokenLoss:
    """−A·(logπ − logπ_behaviour)·1[1/(1+ε) ≤ ρ ≤ 1+ε], with ρ = π/π_behaviour per token and ε =
    ``epsilon``, 0.3 as in Trinity-RFT.

    The surrogate in which the softmax policy's parameters, its log-probabilities, take the place of ppo's ratio. Both
    signs of A lose their gradient outside the range, whose bounds belong to it. As in Trinity-RFT, the value there is
    0 and not that of the bound, which changes no gradient.

    Logged: ``clip_fraction``, tokens outside.

    Reference: Vaswani et al. 2021, https://arxiv.org/abs/2108.05828 (sPPO).
    """
    ratio = stop_gradient(inputs.ratio)
    inside = (ratio >= 1 / (1 + config.epsilon)) & (ratio <= 1 + config.epsilon)
    loss = jnp.where(inside, -inputs.advantages * inputs.log_ratio, 0.0)
    return loss, {"clip_fraction": (~inside).astype(jnp.float32)}
