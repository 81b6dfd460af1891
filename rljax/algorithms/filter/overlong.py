"""Drops groups in which every response was cut off."""

from __future__ import annotations

from rljax.algorithms.registry import filters
from rljax.trajectory import Group


@filters.register("overlong")
def overlong(group: Group) -> str | None:
    """Drops a group all of whose members were cut off by a budget of tokens (`Trajectory.cut_off`).

    Single ones are the business of the key ``overlong``. Reference: overlong filtering of Yu et al. 2025 (DAPO),
    https://arxiv.org/abs/2503.14476, section 3.4.
    """
    return "all cut off" if all(t.cut_off for t in group.trajectories) else None
