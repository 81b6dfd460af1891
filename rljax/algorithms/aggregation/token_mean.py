"""Aggregation in which every token counts the same."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from rljax.algorithms.registry import aggregations


@aggregations.register("token-mean")
def token_mean(
    token_counts: Int[np.ndarray, " trajectories"], max_response_tokens: int
) -> Float[np.ndarray, " trajectories"]:
    """Mean over all trained tokens of the update: 1 / Σ n.

    A long trajectory weighs more than a short one. Reference: Yu et al. 2025 (DAPO), https://arxiv.org/abs/2503.14476.
    """
    return np.full(len(token_counts), 1.0 / max(int(token_counts.sum()), 1))
