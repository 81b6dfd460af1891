"""Discounted return of each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TokenRewards
from rljax.algorithms.registry import token_advantages
from rljax.algorithms.returns import discounted
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.advantage`` with ``adv_estimator=reinforce``."""

    gamma: float = key(1.0, "discount from token to token", low=0, high=1)


@token_advantages.register("reinforce", Config=Config)
def reinforce(
    scored: TokenRewards, config: Config
) -> tuple[Float[np.ndarray, "trajectory token"], Float[np.ndarray, "trajectory token"]]:
    """A_t = R_t = r_t + γ·R_(t+1) over the sampled tokens of a trajectory in order; γ is ``gamma``. No baseline.

    The advantage is the return itself. A reward reaches the tokens of earlier turns too, and the text of environments
    between them is not discounted over, as it is in ROLL.

    Reference: Williams 1992, https://doi.org/10.1007/BF00992696; Sutton and Barto 2018, section 13.3.
    """
    returns = discounted(scored.rewards, config.gamma)
    return returns, returns
