"""Drops groups whose rewards are all equal."""

from __future__ import annotations

from rljax.algorithms.registry import filters
from rljax.trajectory import Group


@filters.register("group_variance", among_members=True)
def group_variance(group: Group) -> str | None:
    """Drops a group whose members all have the same reward: its relative advantages are 0.

    Reference: dynamic sampling of Yu et al. 2025 (DAPO), https://arxiv.org/abs/2503.14476.
    """
    return "equal rewards" if len({t.reward for t in group.trajectories}) < 2 else None
