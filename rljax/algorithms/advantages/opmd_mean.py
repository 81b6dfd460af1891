"""Online policy mirror descent with the mean as its baseline."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages
from rljax.algorithms.returns import centred


@advantages.register("opmd_mean", among_members=True)
def opmd_mean(rewards: Float[np.ndarray, "groups member"]) -> Float[np.ndarray, "groups member"]:
    """A = R − mean within each group, which is what ``opmd_logavgexp`` tends to as τ grows.

    A group of one, or of equal rewards, gives exactly 0.

    Reference: Trinity-RFT, https://arxiv.org/abs/2505.17826, whose "simple" OPMD has this baseline.

    >>> opmd_mean(np.array([[0.0, 3.0]]))
    array([[-1.5,  1.5]])
    """
    return centred(rewards)
