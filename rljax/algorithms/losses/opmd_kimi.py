"""Online policy mirror descent with an estimated partition function."""

from __future__ import annotations

from dataclasses import dataclass

from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=opmd_kimi``."""

    tau: float = key(1.0, "temperature τ of the reward", low=0, low_open=True)


@policy_losses.register(
    "opmd_kimi",
    Config=Config,
    needs=("reference", "sequences"),
    bounds_step=True,
    weighs_tokens=False,
    estimators=("opmd_logavgexp",),
    shares=("tau",),
)
def opmd_kimi(inputs: LossInputs, config: Config) -> TokenLoss:
    """−sg(A − τ·g)·logπ, whose gradient is that of Σ_i (R_i − τ·log Ẑ − τ·g_i)² over the members of a group.

    There g_i = Σ logπ − logπ_ref over trajectory i (`LossInputs.sequence_gap`), τ is ``tau``, the estimator's too, and
    A_i = R_i − τ·log Ẑ with Ẑ = mean exp(R/τ) of the group (``adv_estimator=opmd_logavgexp``).

    The derivative of the square by logπ of any token of trajectory i is −2τ·(A_i − τ·g_i). So with
    ``aggregation=seq-mean-token-sum`` the gradient of this loss is, exactly, that of the mean over trajectories of
    1/(2τ)·(A_i − τ·g_i)². Its value is not that objective's; ``residual`` says how far one is from the minimum.

    Logged: ``residual``, (A_i − τ·g_i)².

    References: Kimi Team 2025, https://arxiv.org/abs/2501.12599, section 2.3.2; Pan et al. 2025 (Trinity-RFT),
    https://arxiv.org/abs/2505.17826.
    """
    residual = stop_gradient(inputs.advantages - config.tau * inputs.needed("sequence_gap"))
    return -residual * inputs.bounded_logprobs, {"residual": residual**2}
