"""Normalised return of each turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import turn_advantages
from rljax.algorithms.returns import discounted, normalised, peers
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.advantage`` with ``adv_estimator=step_reinforce``."""

    grouping: str = key("group", "what returns of turns are compared within", choices=("group", "tag", "batch"))
    gamma: float = key(0.95, "discount from turn to turn", low=0, high=1)


@turn_advantages.register("step_reinforce", Config=Config)
def step_reinforce(scored: TurnRewards, config: Config) -> Float[np.ndarray, "groups member turn"]:
    """A_k = norm(R_k), R_k = r_k + γ·R_{k+1}, γ = ``gamma``; the mean and the unbiased standard deviation
    are those of all turns within ``grouping``.

    Reference: ROLL's ``step_reinforce`` (https://github.com/alibaba/ROLL).
    """
    among = np.broadcast_to(peers(scored.tags, config.grouping)[:, None, None], scored.mask.shape)
    return normalised(discounted(scored.turn_rewards, config.gamma), among, scored.mask)
