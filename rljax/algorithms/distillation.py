"""On-policy distillation: the policy is drawn to teachers on the tokens that it samples itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.ratios import log_difference


def distilled(
    inputs: LossInputs,
    teachers: Mapping[str, Float[Array, "batch time"]],
    weights: Mapping[str, Float[Array, "batch time"]],
    limit: float | None,
) -> LossInputs:
    """Adds to the advantage of each sampled token Σ_k w_k·sg(logπ_k − logπ), π_k being the k-th teacher.

    It is the negative reverse KL, one sample of it, with a discount of 0: a token answers for what its own choice costs
    and not for what follows. On data of the policy itself the policy gradient of these advantages is that of
    −Σ_k w_k·KL(π ‖ π_k), token by token given what stands before: the gradient of the logπ inside is ∇logπ, which is 0
    in expectation, and so is left out.

    logπ is that of the policy that is trained, at the parameters that the gradient is taken at, and not the one that
    was recorded when the token was sampled. On stale data, of a behaviour policy π_b, E over π_b of
    ρ·(logπ_k − logπ)·∇logπ with ρ = π/π_b is still the gradient of that KL; with logπ_b in the place of logπ it would
    be that of Σ π·(logπ_k − logπ_b), which no longer has its maximum at the teacher. What ρ is, how it is bounded and
    whether there is one, the policy loss and the correction say, of these advantages as of all others.

    References: Lu and Thinking Machines Lab 2025, "On-policy distillation",
    https://thinkingmachines.ai/blog/on-policy-distillation (advantage and discount); Agarwal et al. 2024 (GKD),
    https://arxiv.org/abs/2306.13649 (reverse KL on the student's own samples); Kang et al. 2026 (AsyncOPD),
    https://arxiv.org/abs/2606.24143 (on stale data the reverse KL is recomputed at the learner).

    Args:
        inputs: with the advantages of the reward, 0 where nothing is learnt from it.
        teachers: log-probabilities of the sampled tokens by teacher, in nats, at the temperature that they were
            sampled at.
        weights: w_k of each token, by teacher; 0 on what is not to be distilled.
        limit: ``algorithm.advantage_clip``, of the sum.
    """
    total = inputs.advantages
    for name, logprobs in teachers.items():
        total = total + weights[name] * log_difference(logprobs, stop_gradient(inputs.logprobs), inputs.sampled)
    return replace(inputs, advantages=total if limit is None else jnp.clip(total, -limit, limit))
