"""REINFORCE with clips, weights and regularizers, chosen apart."""

from __future__ import annotations

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.policy_loss.ppo import beyond
from rljax.algorithms.ratios import bounded_exp
from rljax.algorithms.registry import policy_losses
from rljax.algorithms.spans import span_ratio
from rljax.config.schema import AlgorithmConfig


@policy_losses.register("rec")
def rec(inputs: LossInputs, config: AlgorithmConfig) -> TokenLoss:
    """−w·A·logπ·1[ρ in range] + regularizer, with ρ = π/π_behaviour per token; made for A = R − mean.

    Range, by ``rec_clip``, with ε from ``rec_clip_low`` and ``rec_clip_high``, ε′ from ``rec_ring_low`` and
    ``rec_ring_high``; bounds belong to it:

    * none: all. one-side: where ppo has a gradient: ρ ≤ 1+ε_hi for A > 0, ρ ≥ 1−ε_lo for A < 0.
    * gspo-one-side: the same of s, the geometric mean of the ratios of the token's sequence (see `span_ratio`).
    * two-side: 1−ε_lo ≤ ρ ≤ 1+ε_hi.
    * ring: two-side, and far outside where the step leads back: ρ ≤ 1−ε′_lo for A > 0, ρ ≥ 1+ε′_hi for A < 0.

    w, by ``rec_weight``: none: 1; importance: sg(ρ), which with one-side has ppo's gradient; gspo-importance: sg(s),
    which with gspo-one-side has gspo's; advantage: exp(A/T), with T from ``rec_temperature``.

    Regularizer, by ``rec_regularizer``, with coefficient c from ``rec_regularizer_coef``, on tokens out of range too:
    none; k2: c·(logπ − logπ_behaviour)² (Kimi's, its ½ in c); forward-kl: −c·logπ (AsymRE is a case of it).

    Logged: ``clip_fraction``, tokens out of range.

    References: Yao et al. 2025, https://arxiv.org/abs/2509.24203; s: Zheng et al. 2025 (GSPO),
    https://arxiv.org/abs/2507.18071, equation 7; both of them in Trinity-RFT, https://arxiv.org/abs/2505.17826.
    """
    ratio, of_sequence = stop_gradient(inputs.ratio), stop_gradient(span_ratio(inputs, "sequence"))
    inside = _in_range(of_sequence if config.rec_clip == "gspo-one-side" else ratio, inputs.advantages, config)
    weight = inside
    if config.rec_weight == "importance":
        weight = weight * ratio
    elif config.rec_weight == "gspo-importance":
        weight = weight * of_sequence
    elif config.rec_weight == "advantage":
        weight = weight * bounded_exp(inputs.advantages / config.rec_temperature)
    loss = -weight * inputs.advantages * inputs.bounded_logprobs
    if config.rec_regularizer == "k2":
        loss = loss + config.rec_regularizer_coef * inputs.log_ratio**2
    elif config.rec_regularizer == "forward-kl":
        loss = loss - config.rec_regularizer_coef * inputs.bounded_logprobs
    return loss, {"clip_fraction": 1 - inside}


def _in_range(
    ratio: Float[Array, "batch time"], advantages: Float[Array, "batch time"], config: AlgorithmConfig
) -> Float[Array, "batch time"]:
    """1 where the policy gradient is kept, else 0."""
    low, high = config.rec_clip_low, config.rec_clip_high
    if config.rec_clip == "none":
        return jnp.ones_like(ratio)
    if config.rec_clip in ("one-side", "gspo-one-side"):
        return 1 - beyond(ratio, advantages, low, high)
    inside = (ratio >= 1 - low) & (ratio <= 1 + high)
    if config.rec_clip == "ring":
        inside |= (advantages > 0) & (ratio <= 1 - config.rec_ring_low)
        inside |= (advantages < 0) & (ratio >= 1 + config.rec_ring_high)
    return inside.astype(ratio.dtype)
