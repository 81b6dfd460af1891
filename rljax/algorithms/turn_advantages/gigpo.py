"""Group-in-group advantage: normalises episodes within a group, and turns among those that began in the same state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import turn_advantages
from rljax.algorithms.returns import discounted, normalised, numbered, peers
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.advantage`` with ``adv_estimator=gigpo``."""

    grouping: str = key("group", "what scores of episodes are compared within", choices=("group", "tag", "batch"))
    gamma: float = key(0.95, "discount from turn to turn", low=0, high=1)
    episode_weight: float = key(1.0, "weight of the episode's advantage", low=0)
    step_weight: float = key(1.0, "weight of the turn's advantage", low=0)


@turn_advantages.register("gigpo", Config=Config)
def gigpo(scored: TurnRewards, config: Config) -> Float[np.ndarray, "groups member turn"]:
    """A_k = w_e·norm(R) + w_s·norm(R_k).

    R is the score of the episode, normalised within ``grouping``. R_k = r_k + γ·R_{k+1} is the return of turn
    k, normalised among the turns of the same group that began in an equal state; a state that was met once gives 0.
    w_e is ``episode_weight``, w_s ``step_weight`` and γ ``gamma``.

    Reference: Feng et al. 2025, GiGPO, https://arxiv.org/abs/2505.10978, equations 6 to 9.

    Raises:
        ValueError: the turns have no states: the environment does not say what state it is in.
    """
    whole = np.broadcast_to(peers(scored.tags, config.grouping)[:, None], scored.rewards.shape)
    episodes = normalised(scored.rewards, whole, scored.members)
    states = np.full(scored.mask.shape, -1, np.int64)
    places = list(zip(*np.nonzero(scored.mask), strict=True))
    try:
        met = [(g, scored.states[g][m][k]) for g, m, k in places]
    except IndexError:
        raise ValueError("gigpo compares turns by state, and some turns have none; use another adv_estimator") from None
    states[scored.mask] = numbered(met)
    turns = normalised(discounted(scored.turn_rewards, config.gamma), states, scored.mask)
    return config.episode_weight * episodes[:, :, None] + config.step_weight * turns
