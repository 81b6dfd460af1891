"""From scored groups to an advantage for every token: what estimators need, and what is done with what they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from rljax.algorithms.inputs import TurnRewards
from rljax.algorithms.registry import advantages, turn_advantages
from rljax.algorithms.returns import EPSILON
from rljax.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from rljax.config import AlgorithmConfig


def batch_advantages(groups: Sequence[Group], config: AlgorithmConfig) -> list[Float[np.ndarray, " time"]]:
    """Advantage of every token of every trajectory, float32, in batch order (group by group, members in order).

    All sampled tokens of a turn have the advantage of the turn; what was not sampled has 0. Groups of different sizes
    are handed to the estimator size by size. Then come ``whiten_advantages`` and ``advantage_clip``, in this order.

    Raises:
        ValueError: the estimator returned another shape, or something that is not finite.
    """
    result: dict[tuple[int, int], Float[np.ndarray, " time"]] = {}
    for size in sorted({len(group.trajectories) for group in groups} - {0}):
        chosen = [index for index, group in enumerate(groups) if len(group.trajectories) == size]
        values = _estimate([groups[index] for index in chosen], config)
        for index, of_group in zip(chosen, values, strict=True):
            for member, trajectory in enumerate(groups[index].trajectories):
                result[index, member] = by_token(trajectory, of_group[member])
    by_member = [result[place] for place in sorted(result)]
    if config.whiten_advantages:
        masks = [trajectory.loss_mask for group in groups for trajectory in group.trajectories]
        by_member = whitened(by_member, masks)
    limit = np.inf if config.advantage_clip is None else config.advantage_clip
    return [np.clip(one, -limit, limit) for one in by_member]


def whitened(
    values: Sequence[Float[np.ndarray, " time"]], masks: Sequence[Bool[np.ndarray, " time"]]
) -> list[Float[np.ndarray, " time"]]:
    """(x − mean) / (std + 1e-6) over all tokens under the masks, with the unbiased deviation; 0 elsewhere.

    Fewer than two tokens, or equal values, are left as they are.
    """
    trained = np.concatenate([value[mask] for value, mask in zip(values, masks, strict=True)] or [np.zeros(0)])
    if len(trained) < 2 or np.ptp(trained) == 0:
        return list(values)
    mean, deviation = trained.mean(dtype=np.float64), trained.std(ddof=1, dtype=np.float64) + EPSILON
    return [
        np.where(mask, (value - mean) / deviation, 0).astype(np.float32)
        for value, mask in zip(values, masks, strict=True)
    ]


def by_token(trajectory: Trajectory, by_turn: Float[np.ndarray, " turns"]) -> Float[np.ndarray, " time"]:
    """Spreads values of turns over their tokens; 0 between. There may be more values than turns."""
    values = np.zeros(len(trajectory.token_ids), np.float32)
    for (start, end), value in zip(trajectory.turns.tolist(), by_turn.tolist(), strict=False):
        values[start:end] = value
    return values


def _estimate(groups: Sequence[Group], config: AlgorithmConfig) -> Float[np.ndarray, "groups member turn"]:
    name = config.adv_estimator
    scored = TurnRewards.of(groups)
    if name in turn_advantages.names():
        values = np.asarray(turn_advantages.get(name)(scored, config))
        wanted = scored.mask.shape
    else:
        values = np.asarray(advantages.get(name)(scored.rewards, config))
        wanted = scored.rewards.shape
    if values.shape != wanted or not np.isfinite(values).all():
        raise ValueError(
            f"algorithm.adv_estimator={name!r}: returned {values.shape} for rewards of {wanted}, or values that are "
            "not finite"
        )
    return np.broadcast_to(values.reshape(*values.shape, *[1] * (3 - values.ndim)), scored.mask.shape)
