"""Online policy mirror descent over the pairs of a group."""

from __future__ import annotations

from dataclasses import dataclass

from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=opmd_pairwise``."""

    tau: float = key(1.0, "temperature τ of the reward", low=0, low_open=True)


@policy_losses.register(
    "opmd_pairwise",
    Config=Config,
    needs=("reference", "sequences"),
    bounds_step=True,
    weighs_tokens=False,
    whole_groups=True,
    estimators=("opmd_mean", "dr_grpo"),
)
def opmd_pairwise(inputs: LossInputs, config: Config) -> TokenLoss:
    """−sg(A − τ·(g − ḡ))·logπ, whose gradient is that of Σ_{i<j} (a_i − a_j)² over the pairs of a group.

    There a_i = R_i − τ·g_i, g_i = Σ logπ − logπ_ref over trajectory i (`LossInputs.sequence_gap`), ḡ the group's mean
    (`LossInputs.group_gap`), and τ is ``tau``. The minimum, where all a_i are equal, is the regularised optimum
    π ∝ π_ref·exp(R/τ), whatever policy the data are of.

    With K members, Σ_{i<j} (a_i − a_j)² = K·Σ_i (a_i − ā)². Its derivative by logπ of any token of trajectory i is
    2K·(a_i − ā)·(−τ), since the deviations add up to 0. With A = R − mean (``adv_estimator=opmd_mean``),
    a_i − ā = A_i − τ·(g_i − ḡ). So with ``aggregation=seq-mean-token-sum`` the gradient of this loss is, exactly, that
    of the mean over groups of 1/(2τK²)·Σ_{i<j} (a_i − a_j)². Its value is not that objective's; ``residual`` says how
    far one is from the minimum.

    Logged: ``residual``, (a_i − ā)².

    Reference: Pan et al. 2025 (Trinity-RFT), https://arxiv.org/abs/2505.17826.
    """
    gap = inputs.needed("sequence_gap") - inputs.needed("group_gap")
    residual = stop_gradient(inputs.advantages - config.tau * gap)
    return -residual * inputs.bounded_logprobs, {"residual": residual**2}
