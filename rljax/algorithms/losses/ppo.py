"""Clipped importance ratios."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.algorithms.spans import span_ratio
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=ppo``."""

    ratio_level: str = key(
        "token",
        "the ratio of a token, or the geometric mean over its turn or sequence",
        choices=("token", "turn", "sequence"),
    )
    clip_low: float = key(0.2, "the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "the ratio is clipped above at 1 + clip_high", low=0)
    dual_clip: float | None = key(None, "bound on the loss where the advantage is negative; None: off", low=1)


@policy_losses.register("ppo", Config=Config, bounds_step=True)
def ppo(inputs: LossInputs, config: Config) -> TokenLoss:
    """−min(ρA, clip(ρ, 1−ε_lo, 1+ε_hi)·A), with ρ = π/π_behaviour, and ε from ``clip_low`` and ``clip_high``.

    ``ratio_level`` says what ρ is the ratio of: the token, or every token of a turn (ROLL's segment) or of a sequence
    gets the geometric mean of their ratios, through which the gradient flows. See `clipped_surrogate` for
    ``dual_clip`` and what is logged.

    References: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; asymmetric ε: Yu et al. 2025 (DAPO),
    https://arxiv.org/abs/2503.14476, equation 10; means over sequences: Zheng et al. 2025 (GSPO),
    https://arxiv.org/abs/2507.18071, equation 7.
    """
    ratio = span_ratio(inputs, config.ratio_level)
    return clipped_surrogate(ratio, inputs.advantages, config.clip_low, config.clip_high, config.dual_clip)


def clipped_surrogate(
    ratio: Float[Array, "batch time"],
    advantages: Float[Array, "batch time"],
    low: float,
    high: float,
    dual_clip: float | None,
) -> TokenLoss:
    """−min(ρA, clip(ρ, 1−low, 1+high)·A); with ``dual_clip`` c the loss of a token with A < 0 is at most −cA.

    A ratio that lies on a bound is not clipped: its gradient is that of ρA. With c, a ratio far above 1 no longer
    dominates (Ye et al. 2020, https://arxiv.org/abs/1912.09729, equation 5).

    Logged: ``clip_fraction``, tokens for which the clipped term is the one taken; ``dual_clip_fraction`` where on.
    """
    unclipped = ratio * advantages
    clipped = jnp.clip(ratio, 1 - low, 1 + high) * advantages
    # not jnp.minimum, which halves the gradient where both are equal
    objective = jnp.where(clipped < unclipped, clipped, unclipped)
    metrics = {"clip_fraction": (clipped < unclipped).astype(jnp.float32)}
    if dual_clip is not None:
        floor = dual_clip * advantages
        bounded = (advantages < 0) & (objective < floor)
        metrics["dual_clip_fraction"] = bounded.astype(jnp.float32)
        objective = jnp.where(bounded, floor, objective)
    return -objective, metrics


def beyond(
    ratio: Float[Array, "batch time"], advantages: Float[Array, "batch time"], low: float, high: float
) -> Float[Array, "batch time"]:
    """Returns 1 where ppo's clip would stop the gradient: A > 0 and ρ > 1+high, or A < 0 and ρ < 1−low; else 0."""
    outside = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    return outside.astype(ratio.dtype)
