"""Group-relative advantage."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages
from rljax.algorithms.returns import EPSILON, centred


@advantages.register("grpo", among_members=True)
def grpo(rewards: Float[np.ndarray, "groups member"]) -> Float[np.ndarray, "groups member"]:
    """A = (R − mean) / (std + 1e-6) within each group, with the unbiased standard deviation.

    A group of one, or of equal rewards, gives exactly 0: rounding of the mean must not be blown up by the small std.

    Reference: Shao et al. 2024, DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.

    >>> grpo(np.array([[0.0, 1.0]])).round(3)
    array([[-0.707,  0.707]])
    """
    if rewards.shape[1] < 2:
        return np.zeros_like(rewards)
    return centred(rewards) / (rewards.std(axis=1, ddof=1, keepdims=True) + EPSILON)
