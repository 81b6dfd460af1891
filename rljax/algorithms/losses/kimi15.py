"""Policy gradient with a squared penalty on the step."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=kimi15``."""

    tau: float = key(0.1, "weight of the squared log-ratio", low=0, low_open=True)


@policy_losses.register("kimi15", Config=Config, bounds_step=True, weighs_tokens=False)
def kimi15(inputs: LossInputs, config: Config) -> TokenLoss:
    """−A·logπ + (τ/2)·(logπ − logπ_behaviour)² per token, with τ from ``tau``, 0.1 as in ROLL.

    Its gradient by logπ is −A + τ·(logπ − logπ_behaviour): a regression towards A/τ, hence no ratio.

    Logged: ``penalty``, the second term.

    Reference: Kimi Team 2025, https://arxiv.org/abs/2501.12599, equation 3, where both terms are of whole responses.
    """
    penalty = config.tau / 2 * inputs.log_ratio**2
    return -inputs.advantages * inputs.bounded_logprobs + penalty, {"penalty": penalty}
