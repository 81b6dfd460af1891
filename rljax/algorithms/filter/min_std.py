"""Drops groups whose rewards are nearly equal."""

from __future__ import annotations

import numpy as np

from rljax.algorithms.registry import filters
from rljax.algorithms.returns import mean_and_deviation
from rljax.config.schema import AlgorithmConfig
from rljax.trajectory import Group


@filters.register("min_std")
def min_std(group: Group, config: AlgorithmConfig) -> str | None:
    """Drops a group the unbiased standard deviation of whose rewards is at most ``filter_min_std``.

    A group of one deviates by 0. With the default of 0 this is ``group_variance``.

    Reference: the ``std_filter`` of ROLL's ``query_filter_config`` (https://github.com/alibaba/ROLL).
    """
    rewards = np.array([t.reward for t in group.trajectories], np.float64)
    _, deviations = mean_and_deviation(rewards, np.zeros(len(rewards), np.int64))
    return "rewards too equal" if deviations[0] <= config.filter_min_std else None
