"""REINFORCE with a baseline below the mean."""

from __future__ import annotations

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig


@policy_losses.register("asymre")
def asymre(inputs: LossInputs, config: AlgorithmConfig) -> TokenLoss:
    """−(A − δ)·logπ, with δ from ``asymre_shift``; made for A = R − mean (``adv_estimator=opmd_mean`` or dr_grpo).

    Then A − δ = R − V with the baseline V = mean + δ. A baseline below the mean, δ < 0, learns more from what went
    well, which off-policy data need; one above it makes the policy collapse.

    Reference: Arnal et al. 2025, https://arxiv.org/abs/2506.20520; the default δ = −0.1 is Trinity-RFT's.
    """
    return -(inputs.advantages - config.asymre_shift) * inputs.bounded_logprobs, {}
