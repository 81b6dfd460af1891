"""Clipped importance ratios around a proximal policy, for data of an older behaviour policy."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.losses.ppo import clipped_surrogate
from rljax.algorithms.ratios import bounded_exp, log_difference
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=decoupled_ppo``."""

    clip_low: float = key(0.2, "the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "the ratio is clipped above at 1 + clip_high", low=0)
    dual_clip: float | None = key(None, "bound on the loss where the advantage is negative; None: off", low=1)
    proximal_policy: str = key(
        "recompute",
        "recompute: the policy before the batch, one forward pass; interpolate: from the other two",
        choices=("recompute", "interpolate"),
    )
    proximal_interpolation: float = key(
        0.5, "share of the policy in the interpolated one, the rest being the behaviour's", low=0, high=1
    )
    behaviour_weight_cap: float = key(
        5.0, "largest ratio of the proximal to the behaviour policy", low=0, low_open=True
    )


@policy_losses.register(
    "decoupled_ppo",
    Config=Config,
    bounds_step=True,
    needs=lambda config: ("proximal",) if config.proximal_policy == "recompute" else (),
)
def decoupled_ppo(inputs: LossInputs, config: Config) -> TokenLoss:
    """−sg(min(π_prox/π_behaviour, cap))·min(ρA, clip(ρ, 1−ε_lo, 1+ε_hi)·A), with ρ = π/π_prox per token.

    The clip bounds the step from the proximal policy, the weight corrects for the behaviour policy. ``clip_low``,
    ``clip_high``, ``dual_clip``: as for ppo. ``behaviour_weight_cap``: truncates the weight from above (AReaL, whose
    default 5 it is, leaves tokens above it out instead).

    ``proximal_policy`` says which policy is the proximal one:

    * recompute: the policy before the first update of the batch, at the price of one forward pass.
    * interpolate: logπ_prox = sg(logπ_behaviour + w·(logπ − logπ_behaviour)), w from ``proximal_interpolation``,
      which costs nothing. The paper's w is 1 − 1/d for data d versions old; here one w holds for all, that of
      d = 2 by default.

    Logged: ``clip_fraction``, ``dual_clip_fraction`` (see ppo), ``behaviour_weight``, ``behaviour_weight_capped``.

    References: Hilton et al. 2022, https://arxiv.org/abs/2110.00641; Fu et al. 2025 (AReaL),
    https://arxiv.org/abs/2505.24298; interpolation: Li et al. 2025 (A-3PO),
    https://arxiv.org/abs/2512.06547.
    """
    log_weight = stop_gradient(_proximal_gap(inputs, config))
    behaviour = bounded_exp(log_weight)
    weight = jnp.minimum(behaviour, config.behaviour_weight_cap)
    ratio = bounded_exp(inputs.log_ratio - log_weight)
    loss, metrics = clipped_surrogate(ratio, inputs.advantages, config.clip_low, config.clip_high, config.dual_clip)
    capped = (behaviour > config.behaviour_weight_cap).astype(jnp.float32)
    return weight * loss, metrics | {"behaviour_weight": weight, "behaviour_weight_capped": capped}


def _proximal_gap(inputs: LossInputs, config: Config) -> Float[Array, "batch time"]:
    """Returns logπ_prox − logπ_behaviour."""
    if config.proximal_policy == "interpolate":
        return config.proximal_interpolation * inputs.log_ratio
    return log_difference(inputs.needed("proximal_logprobs"), inputs.behaviour_logprobs, inputs.mask)
