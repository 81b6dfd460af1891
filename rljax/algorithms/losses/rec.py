"""REINFORCE with clips, weights and regularizers, each chosen by a key of its own."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.losses.ppo import beyond
from rljax.algorithms.ratios import bounded_exp
from rljax.algorithms.registry import policy_losses
from rljax.algorithms.spans import span_ratio
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=rec``."""

    clip: str = key(
        "none",
        "which ratios are trained; gspo-one-side: by the geometric mean of the sequence's",
        choices=("none", "one-side", "gspo-one-side", "two-side", "ring"),
    )
    clip_low: float = key(0.2, "ratios are trained from 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "ratios are trained up to 1 + clip_high", low=0)
    ring_low: float = key(0.6, "ring: and below 1 - ring_low where A > 0", low=0, high=1)
    ring_high: float = key(2.0, "ring: and above 1 + ring_high where A < 0", low=0)
    weight: str = key(
        "none",
        "importance: times the ratio; gspo-importance: times the geometric mean of the sequence's ratios; "
        "advantage: times exp(A/temperature)",
        choices=("none", "importance", "gspo-importance", "advantage"),
    )
    temperature: float = key(1.0, "temperature of the weight by advantage", low=0, low_open=True)
    regularizer: str = key(
        "none",
        "k2: the squared log-ratio; forward-kl: imitation of the data",
        choices=("none", "k2", "forward-kl"),
    )
    regularizer_coef: float = key(0.1, "weight of the regularizer", low=0, low_open=True)


@policy_losses.register(
    "rec",
    Config=Config,
    bounds_step=lambda config: config.weight == "importance" or config.clip != "none" or config.regularizer == "k2",
    weighs_tokens=lambda config: config.weight in ("importance", "gspo-importance"),
    remedy="a loss.clip, or loss.weight=importance",
)
def rec(inputs: LossInputs, config: Config) -> TokenLoss:
    """−w·A·logπ·1[ρ in range] + regularizer, with ρ = π/π_behaviour per token; made for A = R − mean.

    Range, by ``clip``, with ε from ``clip_low`` and ``clip_high``, ε′ from ``ring_low`` and
    ``ring_high``; bounds belong to it:

    * none: all. one-side: where ppo has a gradient: ρ ≤ 1+ε_hi for A > 0, ρ ≥ 1−ε_lo for A < 0.
    * gspo-one-side: the same of s, the geometric mean of the ratios of the token's sequence (see `span_ratio`).
    * two-side: 1−ε_lo ≤ ρ ≤ 1+ε_hi.
    * ring: two-side, and far outside where the step leads back: ρ ≤ 1−ε′_lo for A > 0, ρ ≥ 1+ε′_hi for A < 0.

    w, by ``weight``: none: 1; importance: sg(ρ), which with one-side has ppo's gradient; gspo-importance: sg(s),
    which with gspo-one-side has gspo's; advantage: exp(A/T), with T from ``temperature``.

    Regularizer, by ``regularizer``, with coefficient c from ``regularizer_coef``, on tokens out of range too:
    none; k2: c·(logπ − logπ_behaviour)² (Kimi's, its ½ in c); forward-kl: −c·logπ (AsymRE is a case of it).

    Logged: ``clip_fraction``, tokens out of range.

    References: Yao et al. 2025, https://arxiv.org/abs/2509.24203; s: Zheng et al. 2025 (GSPO),
    https://arxiv.org/abs/2507.18071, equation 7; both of them in Trinity-RFT, https://arxiv.org/abs/2505.17826.
    """
    ratio, of_sequence = stop_gradient(inputs.ratio), stop_gradient(span_ratio(inputs, "sequence"))
    inside = _in_range(of_sequence if config.clip == "gspo-one-side" else ratio, inputs.advantages, config)
    weight = inside
    if config.weight == "importance":
        weight = weight * ratio
    elif config.weight == "gspo-importance":
        weight = weight * of_sequence
    elif config.weight == "advantage":
        weight = weight * bounded_exp(inputs.advantages / config.temperature)
    loss = -weight * inputs.advantages * inputs.bounded_logprobs
    if config.regularizer == "k2":
        loss = loss + config.regularizer_coef * inputs.log_ratio**2
    elif config.regularizer == "forward-kl":
        loss = loss - config.regularizer_coef * inputs.bounded_logprobs
    return loss, {"clip_fraction": 1 - inside}


def _in_range(
    ratio: Float[Array, "batch time"], advantages: Float[Array, "batch time"], config: Config
) -> Float[Array, "batch time"]:
    """Returns 1 where the policy gradient is kept, else 0."""
    low, high = config.clip_low, config.clip_high
    if config.clip == "none":
        return jnp.ones_like(ratio)
    if config.clip in ("one-side", "gspo-one-side"):
        return 1 - beyond(ratio, advantages, low, high)
    inside = (ratio >= 1 - low) & (ratio <= 1 + high)
    if config.clip == "ring":
        inside |= (advantages > 0) & (ratio <= 1 - config.ring_low)
        inside |= (advantages < 0) & (ratio >= 1 + config.ring_high)
    return inside.astype(ratio.dtype)
