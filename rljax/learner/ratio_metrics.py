"""Metrics of an update's importance ratios: how off-policy its data are, and whether the ratios are plausible."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.ratios import BOUND
from rljax.config.schema import Config

MOST_BUCKETS = 17
"""Buckets of staleness, up to 16 steps; what is staler is counted in the last one."""

Sums = dict[str, Float[Array, "*staleness"]]


def ratio_sums(
    inputs: LossInputs, staleness: Int[Array, "row place"], bound: int, clipped: Float[Array, "row place"] | None
) -> Sums:
    """Sums ratios over one microbatch, for `ratio_metrics`: each result is an array by staleness.

    Args:
        inputs: of the loss. Demonstrations have no ratio and are left out.
        staleness: steps that the learner is ahead of the version that sampled each token.
        bound: of the staleness.
        clipped: 1 where the loss clips, else 0; None where it does not say.
    """
    ratio, log_ratio = jax.lax.stop_gradient((inputs.ratio, inputs.log_ratio))
    values = {
        "tokens": jnp.ones_like(ratio),
        "ratio": ratio,
        "ratio_squared": ratio**2,
        "divergence": divergence(log_ratio),
    }
    if clipped is not None:
        values["clipped"] = jax.lax.stop_gradient(clipped)
    buckets = min(bound + 1, MOST_BUCKETS)
    steps = jnp.arange(buckets)[:, None, None]
    chosen = inputs.sampled & (jnp.clip(staleness, 0, buckets - 1) == steps)
    return {name: jnp.sum(jnp.where(chosen, value, 0.0), axis=(1, 2)) for name, value in values.items()}


def divergence(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes ρ − 1 − log ρ in nats, k3 of http://joschu.net/blog/kl-approx.html: an estimate of KL(behaviour ‖
    policy) that is never negative.
    """
    # Near 1, where most ratios are, ρ − 1 − log ρ as it stands is float32's rounding of ρ, of either sign.
    return jnp.expm1(jnp.clip(log_ratio, -BOUND, BOUND)) - log_ratio


def mean_of(total: Float[Array, "*shape"], count: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns ``total / count``; NaN where the count is 0, since a mean of 0 would be taken for a measurement."""
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)


def ratio_metrics(sums: Sums) -> Sums:
    """Computes the metrics of an update, with ρ = π/π_behaviour per trained token that was sampled.

    The mean over tokens that were not selected by their outcome is 1 in expectation whatever the policy, since Σ_x
    π_b(x)·π(x)/π_b(x) = 1: a mean that is not says that the recorded log-probabilities are not those of the
    distribution that was sampled from.

    Returns:
        ``ratio_mean``, ``ratio_variance``; ``ess``, the effective sample size (Σρ)²/(n·Σρ²), between 0 and 1 (Kong
        1992); ``approx_kl``, see `divergence`. Each again as ``…_staleness/N``, of the tokens that are N steps stale,
        and ``clip_fraction_staleness/N`` where the loss clips. NaN where there are no tokens.
    """
    metrics = _means({name: jnp.sum(of_buckets) for name, of_buckets in sums.items() if name != "clipped"})
    for steps in range(len(sums["tokens"])):
        of_bucket = _means({name: of_buckets[steps] for name, of_buckets in sums.items()})
        metrics |= {f"{name}_staleness/{steps}": value for name, value in of_bucket.items()}
    return metrics


def _means(sums: Sums) -> Sums:
    count = sums["tokens"]
    mean, square = mean_of(sums["ratio"], count), mean_of(sums["ratio_squared"], count)
    metrics = {
        "ratio_mean": mean,
        "ratio_variance": jnp.maximum(square - mean**2, 0.0),
        "ess": mean**2 / jnp.maximum(square, 1e-30),
        "approx_kl": mean_of(sums["divergence"], count),
    }
    if "clipped" in sums:
        metrics["clip_fraction"] = mean_of(sums["clipped"], count)
    return metrics


def expects_mean_one(config: Config) -> bool:
    """Returns whether the ratios of a policy's own samples have mean 1: not if their distribution was truncated, and
    not if the outcome of the samples decides whether they are trained.
    """
    sampling, algorithm = config.sidecar.generating_args, config.algorithm
    selected = (
        algorithm.filters or algorithm.overlong == "mask" or config.rollout.train_env_manager.group_size_redundancy
    )
    return not (sampling.top_p < 1 or sampling.top_k or selected)


def ratio_drift(metrics: Mapping[str, float], tokens: float) -> bool:
    """Returns whether the ratios of a step cannot be those of a policy and the distribution that its tokens came from.

    Their mean is 1 in expectation, where the tokens' outcome did not decide which of them are trained. Above 1, a mean
    drifts that is off by more than 0.05 and six standard errors. Below, the deviation is no measure, since what is rare
    and large may not have been drawn: a mean under 1/2 drifts. Log-probabilities of another token, temperature or
    policy come out this way, even where the reward rises.

    >>> ratio_drift({"policy/ratio_mean": 1.4, "policy/ratio_variance": 1.0}, 1000)
    True
    """
    if not tokens or "policy/ratio_mean" not in metrics:
        return False
    error = math.sqrt(metrics["policy/ratio_variance"] / tokens)
    return metrics["policy/ratio_mean"] - 1 > 0.05 + 6 * error or metrics["policy/ratio_mean"] < 0.5
