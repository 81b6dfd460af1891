"""Normalised return of each turn."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import turn_advantages
from rljax.algorithms.returns import discounted, normalised, peers
from rljax.config.schema import AlgorithmConfig


@turn_advantages.register("step_reinforce")
def step_reinforce(scored: TurnRewards, config: AlgorithmConfig) -> Float[np.ndarray, "groups member turn"]:
    """A_k = norm(R_k), R_k = r_k + γ·R_{k+1}, γ = ``step_reward_gamma``; the mean and the unbiased standard deviation
    are those of all turns within ``reward_grouping``.

    Reference: ROLL's ``step_reinforce`` (https://github.com/alibaba/ROLL).
    """
    among = np.broadcast_to(peers(scored.tags, config.reward_grouping)[:, None, None], scored.mask.shape)
    return normalised(discounted(scored.turn_rewards, config.step_reward_gamma), among, scored.mask)
