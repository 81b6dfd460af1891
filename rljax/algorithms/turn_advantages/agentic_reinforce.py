"""Discounted return of each turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import turn_advantages
from rljax.algorithms.returns import discounted
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.advantage`` with ``adv_estimator=agentic_reinforce``."""

    gamma: float = key(1.0, "discount from turn to turn", low=0, high=1)


@turn_advantages.register("agentic_reinforce", Config=Config)
def agentic_reinforce(scored: TurnRewards, config: Config) -> Float[np.ndarray, "groups member turn"]:
    """A_k = R_k = r_k + γ·R_{k+1}, the same for all tokens of turn k; γ is ``gamma``. No baseline.

    Reference: ROLL's ``agentic_reinforce`` (https://github.com/alibaba/ROLL).
    """
    return discounted(scored.turn_rewards, config.gamma)
