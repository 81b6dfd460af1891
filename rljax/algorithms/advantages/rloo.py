"""Leave-one-out advantage."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages
from rljax.algorithms.returns import centred


@advantages.register("rloo", among_members=True)
def rloo(rewards: Float[np.ndarray, "groups member"]) -> Float[np.ndarray, "groups member"]:
    """A = R − mean of the other members' rewards = K/(K−1) · (R − mean), for groups of K members.

    A group of one, or of equal rewards, gives exactly 0.

    Reference: Ahmadian et al. 2024, Back to Basics, https://arxiv.org/abs/2402.14740, section 3.

    >>> rloo(np.array([[0.0, 0.0, 3.0]]))
    array([[-1.5, -1.5,  3. ]])
    """
    members = rewards.shape[1]
    if members < 2:
        return np.zeros_like(rewards)
    return members / (members - 1) * centred(rewards)
