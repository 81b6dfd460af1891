"""Imitation of demonstrations."""

from __future__ import annotations

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig


@policy_losses.register("sft")
def sft(inputs: LossInputs, config: AlgorithmConfig) -> TokenLoss:
    """−φ·logπ on the tokens of demonstrations (`LossInputs.expert`), 0 on the others; on all where none is marked.

    Rewards and advantages are not read. φ: see `imitation`.
    """
    loss = imitation(inputs, config)
    return loss if inputs.expert is None else jnp.where(inputs.expert, loss, 0.0), {}


def imitation(inputs: LossInputs, config: AlgorithmConfig) -> Float[Array, "batch time"]:
    """−φ·logπ of every token; φ is 1, or with ``sft_phi`` sg(p·(1 − p)) with p = π.

    The latter (CHORD-φ) leaves alone what the policy knows and what it finds absurd.

    Reference: Zhang et al. 2025 (CHORD), https://arxiv.org/abs/2508.11408.
    """
    logprobs = inputs.bounded_logprobs
    if not config.sft_phi:
        return -logprobs
    probability = stop_gradient(jnp.exp(logprobs))
    return -probability * (1 - probability) * logprobs
