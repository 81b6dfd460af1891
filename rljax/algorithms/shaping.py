"""Shapes rewards before an estimator reads them, and advantages afterwards.

Stages, in the order in which `assign_credit` takes them; each is a pure function, and all are computed in float64:

1. Sample masks: what is not trained (``overlong=mask``, ``drop_staler_than``), and what a long response loses
   (``overlong=penalty``). A masked member counts in every mean and deviation below, except those of stage 7, but not
   in the loss.
2. Normalisation: ``norm_mean`` and ``norm_std``.
3. ``reward_clip``.
4. KL in the reward: −β·kl of each sampled token (`assign_credit` says how each kind of estimator gets it).
5. ``whiten_rewards``.
6. The estimator, ``adv_estimator``.
7. ``whiten_advantages``, then ``advantage_clip``, over the trained tokens.

Stages 1 to 3 change the score R of a trajectory. Where its turns have rewards of their own, these are divided by what
the score was divided by, and whatever else is added to the score is added to the last turn: they still add up to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from rljax.algorithms.inputs import TokenRewards
from rljax.algorithms.returns import EPSILON, mean_and_deviation, peers
from rljax.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from rljax.config.schema import AlgorithmConfig


@dataclass(frozen=True)
class RunningMoments:
    """Mean and spread of all rewards seen so far, merged batch by batch.

    Reference: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances", equations 2.1.

    Attributes:
        count: rewards seen.
        mean: of them.
        m2: sum of their squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def after(self, rewards: Float[np.ndarray, " rewards"]) -> RunningMoments:
        """Returns the moments with these rewards included."""
        if not len(rewards):
            return self
        equal = np.ptp(rewards) == 0  # rounding must not make a spread of equal rewards
        mean = float(rewards[0] if equal else rewards.mean())
        m2 = 0.0 if equal else float(np.square(rewards - mean).sum())
        count = self.count + len(rewards)
        delta, share = mean - self.mean, len(rewards) / count
        return RunningMoments(count, self.mean + delta * share, self.m2 + m2 + delta**2 * self.count * share)

    @property
    def deviation(self) -> float:
        """Unbiased standard deviation; 0 of fewer than two rewards."""
        return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else 0.0


NO_REWARDS = RunningMoments()
"""Moments before the first batch."""


def kept_tokens(trajectory: Trajectory, config: AlgorithmConfig, step: int | None) -> Bool[np.ndarray, " time"]:
    """Returns which tokens of a trajectory are trained: the sampled ones, but none of a response that was cut off under
    ``overlong=mask``, and none that is staler than ``drop_staler_than``, which is step − version of the token.

    A trajectory that was sampled across a weight update keeps its newer tokens.

    Args:
        trajectory: of the batch.
        config: of the objective.
        step: t, the step that trains it, in which a token of version t is fresh.

    Raises:
        ValueError: ``drop_staler_than`` is set and there is no step.
    """
    if config.overlong == "mask" and trajectory.cut_off:
        return np.zeros(len(trajectory.loss_mask), np.bool_)
    if config.drop_staler_than is None:
        return np.array(trajectory.loss_mask, np.bool_)
    if step is None:
        raise ValueError("algorithm.drop_staler_than: needs the step that trains the batch")
    return trajectory.loss_mask & (step - trajectory.versions <= config.drop_staler_than)


def overlong_penalty(trajectory: Trajectory, config: AlgorithmConfig, max_response_tokens: int) -> float:
    """Returns the penalty on the reward for length: p·min(max((n − (L − b))/b, 0), 1).

    n is the length of the longest turn, L the most tokens that a turn may have, b ``overlong_buffer``, p
    ``overlong_penalty``: nothing up to L − b tokens, then linearly more, all of p at L.

    Reference: soft overlong punishment of Yu et al. 2025 (DAPO), https://arxiv.org/abs/2503.14476, equation 13.

    Raises:
        ValueError: there is no ``overlong_buffer``.
    """
    buffer = config.overlong_buffer
    if buffer is None:
        raise ValueError("algorithm.overlong='penalty': needs overlong_buffer")
    longest = max((end - start for start, end in trajectory.turns.tolist()), default=0)
    return config.overlong_penalty * min(max((longest - (max_response_tokens - buffer)) / buffer, 0.0), 1.0)


def normalise(
    rewards: Float[np.ndarray, " trajectories"],
    groups: Sequence[Group],
    config: AlgorithmConfig,
    moments: RunningMoments,
) -> tuple[Float[np.ndarray, " trajectories"], Float[np.ndarray, " trajectories"]]:
    """Returns (R − mean)/(std + 1e-6); the mean is 0 without ``norm_mean``, the divisor 1 without ``norm_std``.

    Either is chosen apart: of the ``group``, of its ``tag`` (taskset), of the ``batch``, or ``running``: of all rewards
    seen so far, this batch's included. The standard deviation is unbiased. With ``norm_std`` alone, the rewards are
    scaled where they are: zero stays zero and no sign changes.

    What has no spread, which is a deviation of at most 1e-6 (a group of one, equal rewards), is never divided by it: it
    gives 0 where both are set, and is not scaled where only ``norm_std`` is.

    Reference: ROLL's ``norm_mean_type`` and ``norm_std_type`` (https://github.com/alibaba/ROLL).

    Returns:
        The rewards, and what each was multiplied by.
    """
    unscaled = np.ones(len(rewards))
    centred = rewards if config.norm_mean is None else rewards - _levels(rewards, groups, config.norm_mean, moments)[0]
    if config.norm_std is None:
        return centred, unscaled
    deviations = _levels(rewards, groups, config.norm_std, moments)[1]
    flat = 1.0 if config.norm_mean is None else 0.0
    scales = np.where(deviations > EPSILON, 1 / (deviations + EPSILON), flat)
    return centred * scales, scales


def shape_rewards(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    moments: RunningMoments,
    max_response_tokens: int | None,
) -> tuple[list[Group], RunningMoments]:
    """Applies stages 1 to 3 to rewards: penalty, normalisation, clip.

    Returns:
        The groups with their new rewards, and the moments of the rewards after the penalty.

    Raises:
        ValueError: ``overlong=penalty``, and nobody says how long a response may be, or where it begins to cost.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([t.reward for t in trajectories], np.float64)
    if config.overlong == "penalty":
        if max_response_tokens is None:
            raise ValueError("algorithm.overlong='penalty': needs model.max_response_tokens")
        rewards -= [overlong_penalty(t, config, max_response_tokens) for t in trajectories]
    moments = moments.after(rewards)
    rewards, scales = normalise(rewards, groups, config, moments)
    if config.reward_clip is not None:
        rewards = np.clip(rewards, -config.reward_clip, config.reward_clip)
    shaped = iter([_rewarded(t, r, s) for t, r, s in zip(trajectories, rewards, scales, strict=True)])
    return [Group(group.task, tuple(next(shaped) for _ in group.trajectories)) for group in groups], moments


def charge_turns(groups: Sequence[Group], charges: Sequence[Float[np.ndarray, " time"]]) -> list[Group]:
    """Subtracts the charges of its tokens from the reward of each turn, and all of them from the trajectory's.

    Args:
        groups: the batch.
        charges: of every token of every trajectory, in batch order; read where a token was sampled.
    """
    left = iter(charges)
    return [Group(group.task, tuple(_subtract_charges(t, next(left)) for t in group.trajectories)) for group in groups]


def charge_to_go(trajectory: Trajectory, charges: Float[np.ndarray, " time"]) -> Float[np.ndarray, " time"]:
    """Returns the charges of each sampled token and those after it, undiscounted; 0 where nothing was sampled."""
    sampled = np.where(trajectory.loss_mask, charges, 0.0)
    return np.where(trajectory.loss_mask, np.cumsum(sampled[::-1])[::-1], 0.0)


def whiten_rewards(scored: TokenRewards) -> TokenRewards:
    """Divides token rewards by their unbiased standard deviation + 1e-6, over all sampled tokens of the batch.

    The mean stays: were it taken off, every token would earn or cost something, and length with it. Fewer than two
    tokens, or rewards that deviate by at most 1e-6, are left as they are.

    Reference: Ziegler et al. 2019, https://arxiv.org/abs/1909.08593, in whose code rewards are whitened without a shift
    of the mean.
    """
    rewards = scored.rewards[scored.mask]
    deviation = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
    return replace(scored, rewards=scored.rewards / (deviation + EPSILON)) if deviation > EPSILON else scored


def whitened(
    values: Sequence[Float[np.ndarray, " time"]], masks: Sequence[Bool[np.ndarray, " time"]]
) -> list[Float[np.ndarray, " time"]]:
    """Returns (x − mean) / (std + 1e-6) over all tokens under the masks, with the unbiased deviation; 0 elsewhere.

    Values that deviate by at most 1e-6 are not divided. A single token is left as it is: it has nothing to be compared
    with.
    """
    trained = np.concatenate([np.zeros(0), *(value[mask] for value, mask in zip(values, masks, strict=True))])
    if len(trained) < 2:
        return list(values)
    mean, deviation = trained.mean(), trained.std(ddof=1)
    scale = deviation + EPSILON if deviation > EPSILON else 1.0
    return [np.where(mask, (value - mean) / scale, 0.0) for value, mask in zip(values, masks, strict=True)]


def _levels(
    rewards: Float[np.ndarray, " trajectories"], groups: Sequence[Group], scope: str, moments: RunningMoments
) -> tuple[Float[np.ndarray, " trajectories"], Float[np.ndarray, " trajectories"]]:
    if scope == "running":
        return np.full(len(rewards), moments.mean), np.full(len(rewards), moments.deviation)
    among = peers([group.task.taskset for group in groups], scope)
    return mean_and_deviation(rewards, np.repeat(among, [len(group.trajectories) for group in groups]))


def _rewarded(trajectory: Trajectory, reward: float, scale: float) -> Trajectory:
    if (reward, scale) == (trajectory.reward, 1.0):
        return trajectory
    turn_rewards = scale * np.asarray(trajectory.turn_rewards, np.float64)
    turn_rewards[-1:] += reward - scale * trajectory.reward
    return replace(trajectory, reward=float(reward), turn_rewards=turn_rewards)


def _subtract_charges(trajectory: Trajectory, charges: Float[np.ndarray, " time"]) -> Trajectory:
    sampled = np.where(trajectory.loss_mask, charges, 0.0)
    of_turns = [sampled[start:end].sum() for start, end in trajectory.turns.tolist()]
    turn_rewards = trajectory.rewards_by_turn - np.array(of_turns, np.float64)
    return replace(trajectory, reward=trajectory.reward - float(sampled.sum()), turn_rewards=turn_rewards)
