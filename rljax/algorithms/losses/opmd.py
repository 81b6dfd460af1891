"""Online policy mirror descent, its simple form."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=opmd``."""

    tau: float = key(1.0, "temperature τ of the reward", low=0, low_open=True)


@policy_losses.register("opmd", Config=Config, weighs_tokens=False)
def opmd(inputs: LossInputs, config: Config) -> TokenLoss:
    """−A·logπ/(1+τ), with τ from ``tau``, 1 as in Trinity-RFT.

    Made for A = R − mean (``adv_estimator=opmd_mean``).

    It is the first step of ``opmd_pairwise`` from the reference, where π = π_ref, with a factor that makes steps
    smaller the stronger the regularisation is. Nothing bounds it further away.

    Reference: Pan et al. 2025 (Trinity-RFT), https://arxiv.org/abs/2505.17826.
    """
    return -inputs.advantages * inputs.bounded_logprobs / (1 + config.tau), {}
