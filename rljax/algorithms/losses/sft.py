"""Imitation of demonstrations."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=sft``."""

    phi: bool = key(False, "imitated tokens are weighed by p(1 - p)")


@policy_losses.register("sft", Config=Config, bounds_step=True, imitates=True)  # no loss on what is stale
def sft(inputs: LossInputs, config: Config) -> TokenLoss:
    """−φ·logπ on the tokens of demonstrations (`LossInputs.expert`), 0 on the others; on all where none is marked.

    Rewards and advantages are not read. φ: see `imitation`.
    """
    loss = imitation(inputs, config.phi)
    return loss if inputs.expert is None else jnp.where(inputs.expert, loss, 0.0), {}


def imitation(inputs: LossInputs, phi: bool) -> Float[Array, "batch time"]:
    """−φ·logπ of every token; φ is 1, or with ``phi`` sg(p·(1 − p)) with p = π.

    The latter (CHORD-φ) leaves alone what the policy knows and what it finds absurd.

    Reference: Zhang et al. 2025 (CHORD), https://arxiv.org/abs/2508.11408.
    """
    logprobs = inputs.bounded_logprobs
    if not phi:
        return -logprobs
    probability = stop_gradient(jnp.exp(logprobs))
    return -probability * (1 - probability) * logprobs
