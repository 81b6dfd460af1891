"""Drops groups that are too hard or too easy."""

from __future__ import annotations

import numpy as np

from rljax.algorithms.registry import filters
from rljax.config.schema import AlgorithmConfig
from rljax.trajectory import Group


@filters.register("mean_band")
def mean_band(group: Group, config: AlgorithmConfig) -> str | None:
    """Drops a group whose mean reward is below ``filter_mean_low`` or above ``filter_mean_high``; a bound itself is
    inside, None is no bound.

    With rewards of 0 and 1 the mean is the share of successes, and this is ROLL's ``difficulty_mask`` as well as its
    ``mean_filter``. It drops the group, which is then replaced: masking would train a smaller batch.
    A mean that is not finite is kept, so that whoever trains it names the reward.

    Reference: ROLL's ``query_filter_config`` (https://github.com/alibaba/ROLL).
    """
    mean = np.mean([t.reward for t in group.trajectories])
    if config.filter_mean_low is not None and mean < config.filter_mean_low:
        return "mean reward too low"
    if config.filter_mean_high is not None and mean > config.filter_mean_high:
        return "mean reward too high"
    return None
