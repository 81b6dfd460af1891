"""No advantage of the reward."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages


@advantages.register("none", reads_rewards=False)
def none(rewards: Float[np.ndarray, "groups member"]) -> Float[np.ndarray, "groups member"]:
    """A = 0, whatever the rewards are: teachers alone (`rljax.algorithms.distillation`) say what is learnt."""
    return np.zeros_like(rewards)
