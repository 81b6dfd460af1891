"""Staleness rule: which groups may be claimed and which may be leased (promises P1 and P2). Pure functions.

Let b be the groups of a batch, S the staleness bound, t a step. A group claimed while v is the announced version must
be trained no later than step d = v + S. Unleased groups are *feasible for t* when a learner that trains b groups a step
from step t on can meet every deadline: for every j >= -1, at most (j+1)·b of them have d <= t+j.
"""

from __future__ import annotations

from collections.abc import Mapping

Deadlines = Mapping[int, int]
"""Number of unleased groups by deadline."""


def slack(deadlines: Deadlines, step: int, batch_groups: int) -> dict[int, int]:
    """Returns for each deadline how many groups fit by then beyond those that must: negative where it cannot be met."""
    room, due = {}, 0
    for deadline in sorted(deadlines):
        due += deadlines[deadline]
        room[deadline] = max(deadline - step + 1, 0) * batch_groups - due
    return room


def feasible(deadlines: Deadlines, step: int, batch_groups: int) -> bool:
    """Returns whether all groups can be trained in time from ``step`` on. Between deadlines the bound only grows."""
    return all(room >= 0 for room in slack(deadlines, step, batch_groups).values())


def claimable(deadlines: Deadlines, step: int, batch_groups: int, deadline: int) -> int:
    """Returns how many groups of ``deadline`` can join and leave all of them feasible for ``step``."""
    room = slack({**deadlines, deadline: deadlines.get(deadline, 0)}, step, batch_groups)
    if min(room.values()) < 0:
        return 0
    return min(left for due, left in room.items() if due >= deadline)
