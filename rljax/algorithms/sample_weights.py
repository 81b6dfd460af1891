"""Weights of trajectories in the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from rljax.trajectory import Group

if TYPE_CHECKING:
    from rljax.config.schema import AlgorithmConfig


def sample_weights(
    groups: Sequence[Group], keep: Sequence[Bool[np.ndarray, " time"]], config: AlgorithmConfig
) -> Float[np.ndarray, " trajectories"]:
    """Returns the factors of the losses of each trajectory: on average 1 over those that have a trained token, 0 for
    the others.

    With ``difficulty_loss_weight`` a factor 0.5 + 1.5·d: d is 1 − the mean reward of the group, within 0 and 1; rewards
    are those of the task, as scored. With ``length_loss_weight`` a factor 1.5 − (n − min)/(max − min), n sampled
    tokens, min and max over the trajectories that have a trained token; 1.5 where all are equally long. Both multiply.

    Reference: ROLL's keys of these names (https://github.com/alibaba/ROLL); there d is a column of the task's row.

    Args:
        groups: the batch, with rewards as they were scored.
        keep: tokens that are trained, of each trajectory.
        config: of the objective.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    trained = np.array([mask.any() for mask in keep], np.bool_)
    weights = trained.astype(np.float64)
    if not trained.any():
        return weights
    if config.difficulty_loss_weight:
        unsolved = [1 - np.mean([t.reward for t in group.trajectories]) for group in groups if group.trajectories]
        sizes = [len(group.trajectories) for group in groups if group.trajectories]
        weights *= 0.5 + 1.5 * np.clip(np.repeat(unsolved, sizes), 0, 1)
    if config.length_loss_weight:
        lengths = np.array([t.loss_mask.sum() for t in trajectories], np.float64)
        shortest, longest = lengths[trained].min(), lengths[trained].max()
        weights *= 1.5 - (lengths - shortest) / max(longest - shortest, 1)
    return weights / weights[trained].mean()
