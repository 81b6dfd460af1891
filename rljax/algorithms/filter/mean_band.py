"""Drops groups that are too hard or too easy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rljax.algorithms.registry import filters
from rljax.config.fields import ConfigError, key
from rljax.trajectory import Group


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.filter.mean_band``."""

    low: float | None = key(None, "drops groups whose mean reward is below; None: no bound")
    high: float | None = key(None, "drops groups whose mean reward is above; None: no bound")

    def check(self, path: str) -> None:
        """Refuses bounds that cross, or none at all."""
        if self.low is None and self.high is None:
            raise ConfigError(f"{path}: drops nothing; write low or high")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"{path}.low={self.low}: above high={self.high}; every group would be dropped")


@filters.register("mean_band", Config=Config)
def mean_band(group: Group, config: Config) -> str | None:
    """Drops a group whose mean reward is below ``low`` or above ``high``; a bound itself is inside, None is no bound.

    With rewards of 0 and 1 the mean is the share of successes, and this is ROLL's ``difficulty_mask`` as well as its
    ``mean_filter``. It drops the group, which is then replaced: masking would train a smaller batch.
    A group whose mean is not finite is kept, so that the learner's error names the reward.

    Reference: ROLL's ``query_filter_config`` (https://github.com/alibaba/ROLL).
    """
    mean = np.mean([t.reward for t in group.trajectories])
    if config.low is not None and mean < config.low:
        return "mean reward too low"
    if config.high is not None and mean > config.high:
        return "mean reward too high"
    return None
