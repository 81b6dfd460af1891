"""Online policy mirror descent, its simple form."""

from __future__ import annotations

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig


@policy_losses.register("opmd")
def opmd(inputs: LossInputs, config: AlgorithmConfig) -> TokenLoss:
    """−A·logπ/(1+τ), with τ from ``opmd_tau``, 1 as in Trinity-RFT.

    Made for A = R − mean (``adv_estimator=opmd_mean``).

    It is the first step of ``opmd_pairwise`` from the reference, where π = π_ref, with a factor that makes steps
    smaller the stronger the regularisation is. Nothing bounds it further away.

    Reference: Pan et al. 2025 (Trinity-RFT), https://arxiv.org/abs/2505.17826.
    """
    return -inputs.advantages * inputs.bounded_logprobs / (1 + config.opmd_tau), {}
