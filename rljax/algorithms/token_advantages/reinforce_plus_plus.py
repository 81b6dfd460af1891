"""Discounted return of each token, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rljax.algorithms.inputs import TokenRewards
from rljax.algorithms.registry import token_advantages
from rljax.algorithms.returns import discounted, normalised
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.advantage`` with ``adv_estimator=reinforce++``."""

    gamma: float = key(1.0, "discount from token to token", low=0, high=1)


@token_advantages.register("reinforce++", Config=Config)
def reinforce_plus_plus(
    scored: TokenRewards, config: Config
) -> tuple[Float[np.ndarray, "trajectory token"], Float[np.ndarray, "trajectory token"]]:
    """A_t = (R_t − mean) / (std + 1e-6), R_t = r_t + γ·R_(t+1) over the sampled tokens of a trajectory in order; mean
    and unbiased standard deviation are those of all sampled tokens of the batch, γ is ``gamma``.

    A batch of one token, or of equal returns, gives exactly 0. The returns are those before whitening. The paper has a
    KL penalty in the rewards and clips them: these are keys of their own. Over several turns as reinforce; verl begins
    the return anew at each token that is not trained, so that no turn learns from what a later one earned.

    Reference: Hu 2025, REINFORCE++, https://arxiv.org/abs/2501.03262.
    """
    returns = discounted(scored.rewards, config.gamma)
    return normalised(returns, np.zeros(returns.shape, np.int64), scored.mask), returns
