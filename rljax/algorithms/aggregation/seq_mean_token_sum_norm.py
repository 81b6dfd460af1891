"""Aggregation that sums tokens, divides by a constant length, and averages trajectories."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from rljax.algorithms.registry import aggregations


@aggregations.register("seq-mean-token-sum-norm")
def seq_mean_token_sum_norm(
    token_counts: Int[np.ndarray, " trajectories"], max_response_tokens: int
) -> Float[np.ndarray, " trajectories"]:
    """Mean over trajectories of the sum over their trained tokens, over the constant budget L: 1 / (N·L).

    N counts the trajectories that have a trained token, L is ``model.max_response_tokens``. Reference: Liu et al. 2025
    (Dr. GRPO), https://arxiv.org/abs/2503.20783.
    """
    return np.full(len(token_counts), 1.0 / (max(int(np.count_nonzero(token_counts)), 1) * max_response_tokens))
