"""Online policy mirror descent with the soft value as its baseline."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages
from rljax.config.schema import AlgorithmConfig


@advantages.register("opmd_logavgexp")
def opmd_logavgexp(
    rewards: Float[np.ndarray, "groups member"], config: AlgorithmConfig
) -> Float[np.ndarray, "groups member"]:
    """A = R − τ·log mean exp(R/τ) within each group; τ is ``opmd_tau``, in units of the reward.

    The baseline is the soft value of the task, estimated by the group: near its mean for a large τ, near its best
    reward for a small one. A group of one, or of equal rewards, gives exactly 0.

    Reference: Trinity-RFT, https://arxiv.org/abs/2505.17826; Kimi k1.5, https://arxiv.org/abs/2501.12599, section
    2.3.2, has τ·log Z estimated so.

    >>> opmd_logavgexp(np.array([[0.0, np.log(3.0)]]), AlgorithmConfig()).round(3)  # log((1 + 3)/2) = log 2
    array([[-0.693,  0.405]])
    """
    # Off the best reward exp cannot overflow, and its sum is at least 1.
    below = rewards - rewards.max(axis=1, keepdims=True)
    return below - config.opmd_tau * np.log(np.exp(below / config.opmd_tau).mean(axis=1, keepdims=True))
