"""REINFORCE with a baseline below the mean."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=asymre``."""

    shift: float = key(-0.1, "what the baseline is above the mean reward; below 0: beneath it")


@policy_losses.register("asymre", Config=Config, weighs_tokens=False)
def asymre(inputs: LossInputs, config: Config) -> TokenLoss:
    """−(A − δ)·logπ, with δ from ``shift``; made for A = R − mean (``adv_estimator=opmd_mean`` or dr_grpo).

    Then A − δ = R − V with the baseline V = mean + δ. A baseline below the mean, δ < 0, learns more from what went
    well, which off-policy data need; one above it makes the policy collapse.

    Reference: Arnal et al. 2025, https://arxiv.org/abs/2506.20520; the default δ = −0.1 is Trinity-RFT's.
    """
    return -(inputs.advantages - config.shift) * inputs.bounded_logprobs, {}
