"""Aggregation in which every trajectory counts the same."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from rljax.algorithms.registry import aggregations


@aggregations.register("seq-mean-token-mean")
def seq_mean_token_mean(
    token_counts: Int[np.ndarray, " trajectories"], max_response_tokens: int
) -> Float[np.ndarray, " trajectories"]:
    """Mean over trajectories of the mean over their trained tokens: 1 / (N·n).

    N counts the trajectories that have a trained token. Reference: Shao et al. 2024 (GRPO),
    https://arxiv.org/abs/2402.03300.
    """
    return 1.0 / (max(int(np.count_nonzero(token_counts)), 1) * np.maximum(token_counts, 1))
