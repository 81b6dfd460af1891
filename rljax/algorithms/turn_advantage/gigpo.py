"""Group-in-group advantage: whole episodes among each other, and turns among those that began in the same state."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import turn_advantages
from rljax.algorithms.returns import discounted, normalised, numbered, peers
from rljax.config.schema import AlgorithmConfig


@turn_advantages.register("gigpo")
def gigpo(scored: TurnRewards, config: AlgorithmConfig) -> Float[np.ndarray, "groups member turn"]:
    """A_k = w_e·norm(R) + w_s·norm(R_k).

    R is the score of the episode, normalised within ``reward_grouping``. R_k = r_k + γ·R_{k+1} is the return of turn
    k, normalised among the turns of the same group that began in an equal state; a state that was met once gives 0.
    w_e is ``episode_reward_weight``, w_s ``step_reward_weight`` and γ ``step_reward_gamma``.

    Reference: Feng et al. 2025, GiGPO, https://arxiv.org/abs/2505.10978, equations 6 to 9.

    Raises:
        ValueError: the turns have no states: the environment does not say what state it is in.
    """
    whole = np.broadcast_to(peers(scored.tags, config.reward_grouping)[:, None], scored.rewards.shape)
    episodes = normalised(scored.rewards, whole, scored.members)
    states = np.full(scored.mask.shape, -1, np.int64)
    places = list(zip(*np.nonzero(scored.mask), strict=True))
    try:
        met = [(g, scored.states[g][m][k]) for g, m, k in places]
    except IndexError:
        raise ValueError("gigpo compares turns by state, and some turns have none; use another adv_estimator") from None
    states[scored.mask] = numbered(met)
    turns = normalised(discounted(scored.turn_rewards, config.step_reward_gamma), states, scored.mask)
    return config.episode_reward_weight * episodes[:, :, None] + config.step_reward_weight * turns
