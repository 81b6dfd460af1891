"""Corrects the mismatch between the policy that sampled a token and the policy that is trained."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax.lax import stop_gradient

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.ratios import bounded_exp, log_difference
from rljax.algorithms.spans import span_mean, span_sum
from rljax.config.schema import CorrectionConfig


def correction(inputs: LossInputs, config: CorrectionConfig) -> TokenLoss:
    """Computes the factor of each token's policy loss, a constant, from w = π_train/π_behaviour, and what is logged.

    π_train is the proximal policy where `LossInputs.proximal_logprobs` are there, else the policy itself. ``level``:

    * none: every factor is 1. token: w of the token.
    * turn, geometric: exp(mean of log w) over the token's turn, or its sequence. sequence: exp(sum of log w) over it.
      A sequence is one row: see `LossInputs.segment_ids`.

    ``mode``: truncate: the factor is min(w, high), which corrects the gap as far as the bound allows (``low`` is not
    read). mask: 1 where low ≤ w ≤ high, else 0, which leaves out what is too far off and weighs nothing.

    The counts that losses are divided by do not change, so a masked token is trained with loss 0. Tokens of
    demonstrations, which no behaviour policy said, have factor 1, and so has what is not trained.

    Logged: ``correction_weight``, w; ``correction_clipped``, tokens that are truncated or masked.

    References: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training" (truncated,
    token); Liu et al. 2025, "When speed kills stability" (masked, sequence); Zheng et al. 2025 (GSPO),
    https://arxiv.org/abs/2507.18071 (geometric). Levels and bounds are those of ROLL's train_infer_correction.
    """
    if config.level == "none":
        return jnp.ones_like(inputs.logprobs), {}
    sampled = inputs.sampled
    trained = inputs.logprobs if inputs.proximal_logprobs is None else inputs.proximal_logprobs
    inputs = dataclasses.replace(inputs, mask=sampled)
    log_weight = log_difference(stop_gradient(trained), inputs.behaviour_logprobs, sampled)
    if config.level == "sequence":
        log_weight = span_sum(log_weight, inputs, "sequence")
    else:
        log_weight = span_mean(log_weight, inputs, {"geometric": "sequence"}.get(config.level, config.level))
    weight = bounded_exp(log_weight)
    if config.mode == "truncate":
        factor = jnp.minimum(weight, config.high)
        clipped = weight > config.high
    else:
        clipped = (weight < config.low) | (weight > config.high)
        factor = 1.0 - clipped
    metrics = {"correction_weight": weight, "correction_clipped": (clipped & sampled).astype(jnp.float32)}
    return jnp.where(sampled, factor, 1.0), metrics
