"""Group-relative advantage without scaling by the standard deviation."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from rljax.algorithms.registry import advantages
from rljax.algorithms.returns import centred


@advantages.register("dr_grpo", among_members=True)
def dr_grpo(rewards: Float[np.ndarray, "groups member"]) -> Float[np.ndarray, "groups member"]:
    """A = R − mean within each group. No division by the deviation: a task that is nearly always, or nearly never,
    solved counts no more than another.

    The paper's other half, a constant length in place of each response's own, is the aggregation
    ``seq-mean-token-sum-norm``. A group of one, or of equal rewards, gives exactly 0.

    Reference: Liu et al. 2025, Understanding R1-Zero-Like Training, https://arxiv.org/abs/2503.20783.

    >>> dr_grpo(np.array([[0.0, 0.0, 3.0]]))
    array([[-1., -1.,  2.]])
    """
    return centred(rewards)
