"""Returns of turns, and what they are compared with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from rljax.algorithms.inputs import TurnRewards

EPSILON = 1e-6


def discounted(turn_rewards: Float[np.ndarray, "*batch turn"], gamma: float) -> Float[np.ndarray, "*batch turn"]:
    """Return of each turn: R_k = r_k + γ·R_{k+1}.

    >>> discounted(np.array([0.0, 0.0, 1.0]), 0.5)
    array([0.25, 0.5 , 1.  ])
    """
    returns = np.array(turn_rewards, np.float64)
    for turn in range(returns.shape[-1] - 2, -1, -1):
        returns[..., turn] += gamma * returns[..., turn + 1]
    return returns


def normalised(
    values: Float[np.ndarray, "*shape"], among: Int[np.ndarray, "*shape"], mask: Bool[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """(x − mean) / (std + 1e-6) among the values with the same number in ``among``; the standard deviation is unbiased.

    A value that is alone, or among equals, gives exactly 0; so does what ``mask`` leaves out.
    """
    result = np.zeros(values.shape)
    for number in np.unique(among[mask]):
        chosen = mask & (among == number)
        few = values[chosen]
        if len(few) > 1 and np.ptp(few) > 0:
            result[chosen] = (few - few.mean()) / (few.std(ddof=1) + EPSILON)
    return result


def peers(scored: TurnRewards, grouping: str) -> Int[np.ndarray, " groups"]:
    """Number of what each group is compared within.

    Args:
        scored: the groups.
        grouping: ``group``: each by itself; ``tag``: those of its taskset; ``batch``: all.
    """
    if grouping == "group":
        return np.arange(len(scored.tags))
    return numbered([0] * len(scored.tags) if grouping == "batch" else scored.tags)


def numbered(names: Sequence[Hashable]) -> Int[np.ndarray, " names"]:
    """Equal names get equal numbers, counted from 0 in order of appearance.

    >>> numbered(["b", "a", "b"])
    array([0, 1, 0])
    """
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], np.int64)
