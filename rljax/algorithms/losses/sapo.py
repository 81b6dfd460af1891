"""Policy gradient with a soft gate in place of the clip."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=sapo``."""

    tau_positive: float = key(1.0, "steepness of the gate, advantage above 0", low=0, low_open=True)
    tau_negative: float = key(1.05, "steepness of the gate elsewhere", low=0, low_open=True)


@policy_losses.register("sapo", Config=Config, bounds_step=True)
def sapo(inputs: LossInputs, config: Config) -> TokenLoss:
    """−(4/τ)·σ(τ·(ρ − 1))·A, with ρ = π/π_behaviour per token; τ is ``tau_positive`` where A > 0, else
    ``tau_negative``, 1 and 1.05 as in the paper.

    Its gradient is −4p(1−p)·ρ·A·∇logπ with p = σ(τ(ρ−1)): the policy gradient at ρ = 1, fading smoothly as ρ leaves 1,
    and faster for negative advantages, whose τ is larger. Trinity-RFT multiplies a stopped gate by logπ instead,
    which neither fades above 1 nor is the policy gradient at ρ = 1; the paper's is meant here.

    Logged: ``gate``, the factor 4p(1−p) of the gradient.

    Reference: Gao et al. 2025, https://arxiv.org/abs/2511.20347.
    """
    tau = jnp.where(inputs.advantages > 0, config.tau_positive, config.tau_negative)
    p = jax.nn.sigmoid(tau * (inputs.ratio - 1))
    return -4 / tau * p * inputs.advantages, {"gate": 4 * p * (1 - p)}
