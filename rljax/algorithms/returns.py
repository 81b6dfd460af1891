"""Returns of turns and tokens, and their baselines and normalisation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

EPSILON = 1e-6


def discounted(rewards: Float[np.ndarray, "*batch place"], gamma: float) -> Float[np.ndarray, "*batch place"]:
    """Computes the return of each turn or token: R_k = r_k + γ·R_{k+1}; beyond the last there is nothing.

    >>> discounted(np.array([0.0, 0.0, 1.0]), 0.5)
    array([0.25, 0.5 , 1.  ])
    """
    returns = np.array(rewards, np.float64)
    for place in range(returns.shape[-1] - 2, -1, -1):
        returns[..., place] += gamma * returns[..., place + 1]
    return returns


def centred(rewards: Float[np.ndarray, "groups member"]) -> Float[np.ndarray, "groups member"]:
    """Returns R − mean of the group; exactly 0 in a group of one or of equal rewards, however the mean is rounded.

    >>> centred(np.array([[0.0, 3.0], [0.1, 0.1]]))
    array([[-1.5,  1.5],
           [ 0. ,  0. ]])
    """
    return np.where(np.ptp(rewards, axis=1, keepdims=True) > 0, rewards - rewards.mean(axis=1, keepdims=True), 0.0)


def mean_and_deviation(
    values: Float[np.ndarray, " values"], among: Int[np.ndarray, " values"]
) -> tuple[Float[np.ndarray, " values"], Float[np.ndarray, " values"]]:
    """Returns for each value the mean and the unbiased standard deviation of the values with its number in ``among``.

    Of a value that is alone, or among equals, they are exactly that value and 0.
    """
    means, deviations = np.zeros(len(values)), np.zeros(len(values))
    for number in np.unique(among):
        chosen = among == number
        few = values[chosen]
        equal = np.ptp(few) == 0
        means[chosen] = few[0] if equal else few.mean()
        deviations[chosen] = 0.0 if equal else few.std(ddof=1)
    return means, deviations


def normalised(
    values: Float[np.ndarray, "*shape"], among: Int[np.ndarray, "*shape"], mask: Bool[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """Returns (x − mean) / (std + 1e-6) among the values with the same number in ``among``; std is unbiased.

    A value that is alone, or among equals, gives exactly 0; so does what ``mask`` leaves out.
    """
    result = np.zeros(values.shape)
    means, deviations = mean_and_deviation(values[mask], among[mask])
    result[mask] = (values[mask] - means) / (deviations + EPSILON)
    return result


def peers(tags: Sequence[str], grouping: str) -> Int[np.ndarray, " groups"]:
    """Returns the numbers of the peers among which each group is normalised; groups with the same number are peers.

    Args:
        tags: taskset of each group.
        grouping: ``group``: each by itself; ``tag``: those of its taskset; ``batch``: all.
    """
    if grouping == "group":
        return np.arange(len(tags))
    return numbered([0] * len(tags) if grouping == "batch" else tags)


def numbered(names: Sequence[Hashable]) -> Int[np.ndarray, " names"]:
    """Numbers names: equal ones get equal numbers, counted from 0 in order of appearance.

    >>> numbered(["b", "a", "b"])
    array([0, 1, 0])
    """
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], np.int64)
