"""Aggregation that sums tokens and averages trajectories."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from rljax.algorithms.registry import aggregations


@aggregations.register("seq-mean-token-sum")
def seq_mean_token_sum(
    token_counts: Int[np.ndarray, " trajectories"], max_response_tokens: int
) -> Float[np.ndarray, " trajectories"]:
    """Mean over trajectories of the sum over their trained tokens: 1 / N.

    N counts the trajectories that have a trained token. This is the policy gradient as derived: the
    log-probability of a trajectory is the sum of its tokens'.
    """
    return np.full(len(token_counts), 1.0 / max(int(np.count_nonzero(token_counts)), 1))
