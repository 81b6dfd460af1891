"""What the importance ratios of an update tell: how far off its data are, and whether they can be true."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.algorithms.inputs import LossInputs

MOST_BUCKETS = 17
"""Staleness is told apart up to 16 steps; what is staler is counted with them."""

Sums = dict[str, Float[Array, ""]]


def ratio_sums(inputs: LossInputs, staleness: Int[Array, "row place"], bound: int) -> Sums:
    """Sums over one microbatch, for `ratio_metrics`.

    Args:
        inputs: of the loss. Demonstrations have no ratio and are left out.
        staleness: steps that the learner is ahead of the version that sampled each token.
        bound: of the staleness.
    """
    mask = inputs.sampled
    ratio, log_ratio = jax.lax.stop_gradient((inputs.ratio, inputs.log_ratio))
    divergence = jnp.where(mask, ratio - 1 - log_ratio, 0.0)
    sums = {
        "tokens": jnp.sum(mask, dtype=jnp.float32),
        "ratio": jnp.sum(jnp.where(mask, ratio, 0.0)),
        "ratio_squared": jnp.sum(jnp.where(mask, ratio**2, 0.0)),
        "divergence": jnp.sum(divergence),
    }
    buckets = min(bound + 1, MOST_BUCKETS)
    for steps in range(buckets):
        chosen = mask & (jnp.clip(staleness, 0, buckets - 1) == steps)
        sums[f"tokens/{steps}"] = jnp.sum(chosen, dtype=jnp.float32)
        sums[f"divergence/{steps}"] = jnp.sum(jnp.where(chosen, divergence, 0.0))
    return sums


def mean_of(total: Float[Array, ""], count: Float[Array, ""]) -> Float[Array, ""]:
    """``total / count``; NaN for none, since there a 0 would be taken for a measurement."""
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)


def ratio_metrics(sums: Sums) -> Sums:
    """Metrics of an update, with ρ = π/π_behaviour per trained token that was sampled.

    Their mean is 1 in expectation whatever the policy, since Σ_x π_b(x)·π(x)/π_b(x) = 1: a mean that is not says that
    the recorded log-probabilities are not those of the distribution that was sampled from.

    Returns:
        ``ratio_mean``, ``ratio_variance``; ``ess``, the effective sample size (Σρ)²/(n·Σρ²), between 0 and 1 (Kong
        1992); ``approx_kl``, k3 of http://joschu.net/blog/kl-approx.html, an estimate of KL(behaviour ‖ policy) that
        is never negative; ``approx_kl_staleness/N`` of the tokens that are N steps stale. NaN where there are none.
    """
    count = sums["tokens"]
    mean, square = mean_of(sums["ratio"], count), mean_of(sums["ratio_squared"], count)
    metrics = {
        "ratio_mean": mean,
        "ratio_variance": jnp.maximum(square - mean**2, 0.0),
        "ess": mean**2 / jnp.maximum(square, 1e-30),
        "approx_kl": mean_of(sums["divergence"], count),
    }
    for name, of_bucket in sums.items():
        if name.startswith("divergence/"):
            steps = name.removeprefix("divergence/")
            metrics[f"approx_kl_staleness/{steps}"] = mean_of(of_bucket, sums[f"tokens/{steps}"])
    return metrics


def doubtful(metrics: Mapping[str, float], tokens: float) -> bool:
    """Whether the ratios of a step cannot be those of a policy and the distribution that its tokens came from.

    Their mean is 1 in expectation. Above it, a mean is doubted that is off by more than 0.05 and six standard errors.
    Below, the deviation is no measure, since what is rare and large may not have been drawn: a mean under 1/2 is
    doubted. Log-probabilities of another token, temperature or policy come out this way, even where the reward rises.

    >>> doubtful({"policy/ratio_mean": 1.4, "policy/ratio_variance": 1.0}, 1000)
    True
    """
    if not tokens or "policy/ratio_mean" not in metrics:
        return False
    error = math.sqrt(metrics["policy/ratio_variance"] / tokens)
    return metrics["policy/ratio_mean"] - 1 > 0.05 + 6 * error or metrics["policy/ratio_mean"] < 0.5
