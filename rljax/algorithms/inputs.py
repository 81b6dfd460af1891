"""What a policy loss sees."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossInputs:
    """The trained tokens of one microbatch, row by row in order; every array is ``[batch, time]`` and float32 unless
    said otherwise.

    Attributes:
        logprobs: of the policy that is trained, in nats, at the temperature that the token was sampled at.
        behaviour_logprobs: of the policy that sampled the token, as recorded when it did (promise P6).
        advantages: of the token's trajectory.
        rewards: of the token's trajectory.
        mask: bool; true where a token is trained. The other arrays mean nothing elsewhere.
        segment_ids: int32; equal for the tokens of one trajectory within a row, 0 for padding. Makes sequence-level
            ratios possible.
    """

    logprobs: Float[Array, "batch time"]
    behaviour_logprobs: Float[Array, "batch time"]
    advantages: Float[Array, "batch time"]
    rewards: Float[Array, "batch time"]
    mask: Bool[Array, "batch time"]
    segment_ids: Int[Array, "batch time"]

    @property
    def log_ratio(self) -> Float[Array, "batch time"]:
        """logπ − logπ_behaviour; 0 where not trained, so that no masked token can make a loss non-finite."""
        return jnp.where(self.mask, self.logprobs - self.behaviour_logprobs, 0.0)

    @property
    def ratio(self) -> Float[Array, "batch time"]:
        """ρ = π / π_behaviour; 1 where not trained."""
        return jnp.exp(self.log_ratio)
