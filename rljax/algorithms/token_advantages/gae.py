"""Generalised advantage estimation with a critic."""

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
    """Keys of ``algorithm.advantage`` with ``adv_estimator=gae``."""

    gamma: float = key(1.0, "discount from token to token", low=0, high=1)
    lambd: float = key(0.95, "λ, from one step of the critic (0) to the whole return (1)", low=0, high=1)


@token_advantages.register("gae", Config=Config, needs=("values",))
def gae(
    scored: TokenRewards, config: Config
) -> tuple[Float[np.ndarray, "trajectory token"], Float[np.ndarray, "trajectory token"]]:
    """A_t = δ_t + γλ·A_(t+1), δ_t = r_t + γ·V_(t+1) − V_t; returns A_t + V_t, which the critic is trained on.

    t counts the sampled tokens of a trajectory: the text of an environment between two turns is skipped, so that the
    last token of a turn is followed by the first of the next. V_t is the critic's value of everything before token t;
    after the last token it is 0, even where a limit cut the trajectory off: what it scores is all that it gets.
    γ is ``gamma``, λ is ``lambd``.

    References: Schulman et al. 2016, https://arxiv.org/abs/1506.02438, equation 16; in PPO: Schulman et al. 2017,
    https://arxiv.org/abs/1707.06347, equations 11 and 12.

    Raises:
        ValueError: there are no values: the run has no critic.
    """
    if scored.values is None:
        raise ValueError("algorithm.adv_estimator='gae': needs the values of a critic")
    values = np.where(scored.mask, scored.values, 0.0)
    following = np.append(values[:, 1:], np.zeros((len(values), 1)), axis=1)[:, : values.shape[1]]
    advantages = discounted(scored.rewards + config.gamma * following - values, config.gamma * config.lambd)
    return advantages, advantages + values
