"""Online policy mirror descent with the soft value as its baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.advantage`` with ``adv_estimator=opmd_logavgexp``."""

    tau: float = key(1.0, "temperature τ of the reward", low=0, low_open=True)


@advantages.register("opmd_logavgexp", Config=Config, among_members=True)
def opmd_logavgexp(rewards: Float[np.ndarray, "groups member"], config: Config) -> Float[np.ndarray, "groups member"]:
    """A = R − τ·log mean exp(R/τ) within each group; τ is ``tau``, in units of the reward.

    The baseline is the soft value of the task, estimated by the group: near its mean for a large τ, near its best
    reward for a small one. A group of one, or of equal rewards, gives exactly 0.

    Reference: Trinity-RFT, https://arxiv.org/abs/2505.17826; Kimi k1.5, https://arxiv.org/abs/2501.12599, section
    2.3.2, has τ·log Z estimated so.

    >>> opmd_logavgexp(np.array([[0.0, np.log(3.0)]]), Config()).round(3)  # log((1 + 3)/2) = log 2
    array([[-0.693,  0.405]])
    """
    # Off the best reward exp cannot overflow, and its sum is at least 1.
    below = rewards - rewards.max(axis=1, keepdims=True)
    return below - config.tau * np.log(np.exp(below / config.tau).mean(axis=1, keepdims=True))
