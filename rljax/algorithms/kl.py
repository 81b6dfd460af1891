"""Estimators of the divergence from the reference policy, and its adaptive coefficient."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.ratios import BOUND, log_difference

LARGEST = 10.0


def kl_penalty(
    logprobs: Float[Array, "*shape"], reference_logprobs: Float[Array, "*shape"], estimator: str
) -> Float[Array, "*shape"]:
    """Estimates KL(π ‖ π_ref) in nats from one sample for each token that π sampled, with d = logπ − logπ_ref.

    Taken as a loss, its gradient is not always that of what its value estimates (expectations over π):

    * k1: d. Value unbiased. As a loss its gradient is ∇logπ, which is 0 in expectation: it does nothing. It belongs in
      the reward, where it gives the gradient of KL(π ‖ π_ref).
    * k2: d²/2. Value biased, never negative. As a loss its gradient d·∇logπ is, in expectation, exactly that of
      KL(π ‖ π_ref): the right one to put into a loss.
    * k3: e^−d − 1 + d. Value unbiased, never negative. As a loss its gradient (1 − e^−d)·∇logπ is, in expectation,
      that of KL(π_ref ‖ π), the other direction.
    * k3_clamped: k3 with d clamped to ±20 and the value to ±10; no gradient beyond (verl's and Trinity-RFT's
      low_var_kl; ROLL's KL loss).

    Log-probabilities are floored and exponentials bounded as everywhere (see `ratios`): for k3, d counts as at least
    −20 and has no gradient below.

    References: Schulman 2020, http://joschu.net/blog/kl-approx.html; gradients: Tang and Munos 2025,
    https://arxiv.org/abs/2506.09477.

    Args:
        logprobs: of the policy, in nats.
        reference_logprobs: of the reference policy.
        estimator: k1, k2, k3 or k3_clamped.

    Raises:
        ValueError: there is no such estimator.
    """
    gap = log_difference(logprobs, reference_logprobs)
    if estimator == "k1":
        return gap
    if estimator == "k2":
        return gap**2 / 2
    if estimator == "k3":
        return _k3(jnp.maximum(gap, -BOUND))
    if estimator == "k3_clamped":
        return jnp.clip(_k3(jnp.clip(gap, -BOUND, BOUND)), -LARGEST, LARGEST)
    raise ValueError(f"estimator={estimator!r}: not one of k1, k2, k3, k3_clamped")


def adapted(coefficient: float, measured: float, target: float, horizon: float, n: int) -> float:
    """Returns the coefficient of the divergence after n samples in which it was `measured`: β·(1 + e·n/horizon).

    The error e = measured/target − 1 is clipped to ±0.2, so that the weight at most grows or shrinks by a fifth within
    a horizon. It never gets negative. A measurement that is not finite changes nothing.

    Reference: Ziegler et al. 2019, https://arxiv.org/abs/1909.08593, section 2.2; the horizon: its published code.

    >>> adapted(0.1, 0.02, 0.01, 100, 10)
    0.102
    """
    if not math.isfinite(measured):
        return coefficient
    error = min(max(measured / target - 1, -0.2), 0.2)
    return coefficient * max(1 + error * n / horizon, 0.0)


def _k3(gap: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.expm1(-gap) + gap  # e^−d − 1 would lose all that a small d leaves of it
