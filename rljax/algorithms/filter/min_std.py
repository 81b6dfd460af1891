"""Drops groups whose rewards are nearly equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rljax.algorithms.registry import filters
from rljax.algorithms.returns import mean_and_deviation
from rljax.config.fields import key
from rljax.trajectory import Group


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.filter.min_std``."""

    bound: float = key(0.0, "drops groups whose rewards deviate by no more than this", low=0)


@filters.register("min_std", Config=Config, among_members=True)
def min_std(group: Group, config: Config) -> str | None:
    """Drops a group the unbiased standard deviation of whose rewards is at most ``bound``.

    A group of one deviates by 0. With the default of 0 this is ``group_variance``.

    Reference: the ``std_filter`` of ROLL's ``query_filter_config`` (https://github.com/alibaba/ROLL).
    """
    rewards = np.array([t.reward for t in group.trajectories], np.float64)
    _, deviations = mean_and_deviation(rewards, np.zeros(len(rewards), np.int64))
    return "rewards too equal" if deviations[0] <= config.bound else None
