"""Computes the learner's training signal from scored groups: advantages, returns, masks and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from rljax.algorithms.inputs import TokenRewards, TurnRewards
from rljax.algorithms.registry import advantages, token_advantages, turn_advantages
from rljax.algorithms.sample_weights import sample_weights
from rljax.algorithms.shaping import (
    NO_REWARDS,
    RunningMoments,
    charge_to_go,
    charge_turns,
    kept_tokens,
    shape_rewards,
    whiten_rewards,
    whitened,
)
from rljax.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from rljax.config.schema import AlgorithmConfig

GREEDY_REWARD = "greedy_reward"
"""Name among `Trajectory.metrics` of the reward of the greedy answer to the same task."""

ByToken = list[Float[np.ndarray, " time"]]


@dataclass(frozen=True)
class CreditAssignment:
    """Training signal of a batch, trajectory by trajectory in batch order: group by group, members in order.

    Attributes:
        advantages: float32, of every token; 0 where nothing was sampled.
        returns: float32, of every token, what a critic is trained on; 0 where nothing was sampled. None where no
            critic's values were given, or the estimator is not one of tokens.
        keep: bool, tokens that are trained: of the sampled ones those that no sample mask takes out.
        sample_weights: float64, what the losses of a trajectory are multiplied by; on average 1 over the trained ones.
        moments: of the rewards of all batches up to this one; to be handed in with the next, and kept in checkpoints.
    """

    advantages: ByToken
    returns: ByToken | None
    keep: list[Bool[np.ndarray, " time"]]
    sample_weights: Float[np.ndarray, " trajectories"]
    moments: RunningMoments


def assign_credit(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    *,
    kl: Sequence[Float[np.ndarray, " time"]] | None = None,
    kl_coef: float = 0.0,
    values: Sequence[Float[np.ndarray, " time"]] | None = None,
    moments: RunningMoments = NO_REWARDS,
    step: int | None = None,
    max_response_tokens: int | None = None,
) -> CreditAssignment:
    """Computes advantages from rewards, by the stages that `shaping` lists. A pure function, and the only way.

    Where the KL goes (stage 4), by the kind of estimator:

    - of tokens: token t earns −β·kl_t, with all the estimator does to rewards.
    - of turns: a turn earns −β·Σ kl_t over its tokens, and the trajectory all of them.
    - of trajectories: the advantage of token t is that of the trajectory plus −β·Σ_{s≥t} kl_s, undiscounted. The
      return is linear in the rewards: the score's part is the estimator's, with its baseline, and the part of the KL is
      its own return from t on, without one, since what came before t is not the doing of t.

    Args:
        groups: the batch; their sizes may differ. May be empty.
        config: of the objective.
        kl: of every token of every trajectory, from the reference policy, in nats; read where a token was sampled.
        kl_coef: β.
        values: of every token of every trajectory, the critic's value of what comes before it; read where sampled.
        moments: of the rewards of the batches before.
        step: t, the step that trains the batch; ``drop_staler_than`` needs it.
        max_response_tokens: ``model.max_response_tokens``; ``overlong=penalty`` needs it.

    Raises:
        ValueError: a reward, KL or value is not finite; the estimator returned another shape, or something that is not
            finite; something is missing that a key needs.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    _check_finite(groups, kl, values)
    keep = [kept_tokens(trajectory, config, step) for trajectory in trajectories]
    shaped, moments = shape_rewards(groups, config, moments, max_response_tokens)
    charges = None if kl is None else [kl_coef * np.asarray(one, np.float64) for one in kl]
    name, returns = config.adv_estimator, None
    if name in token_advantages.names():
        by_token, returns = _by_token(shaped, config, charges, values)
    elif name in turn_advantages.names():
        by_token = _by_turn(shaped if charges is None else charge_turns(shaped, charges), config)
    else:
        by_token = _by_group(shaped, config)
        if charges is not None:
            by_token = [a - charge_to_go(t, c) for a, t, c in zip(by_token, trajectories, charges, strict=True)]
    if config.whiten_advantages:
        by_token = whitened(by_token, keep)
    limit = np.inf if config.advantage_clip is None else config.advantage_clip
    return CreditAssignment(
        [np.clip(one, -limit, limit).astype(np.float32) for one in by_token],
        None if values is None or returns is None else [one.astype(np.float32) for one in returns],
        keep,
        sample_weights(groups, keep, config),
        moments,
    )


def batch_advantages(groups: Sequence[Group], config: AlgorithmConfig) -> ByToken:
    """Returns `CreditAssignment.advantages` of a config that needs nothing but rewards."""
    return assign_credit(groups, config).advantages


def _check_finite(
    groups: Sequence[Group], kl: Sequence[np.ndarray] | None, values: Sequence[np.ndarray] | None
) -> None:
    members = [(group, trajectory) for group in groups for trajectory in group.trajectories]
    for place, (group, trajectory) in enumerate(members):
        read: dict[str, np.ndarray | float] = {"reward": trajectory.reward, "turn_rewards": trajectory.turn_rewards}
        for what, given in (("KL", kl), ("value", values)):
            if given is not None:
                read[what] = given[place][trajectory.loss_mask]
        for what, numbers in read.items():
            if not np.isfinite(numbers).all():
                raise ValueError(f"task {group.task} member {trajectory.member}: its {what} is not finite: {numbers}")


def _by_token(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    charges: Sequence[Float[np.ndarray, " time"]] | None,
    values: Sequence[Float[np.ndarray, " time"]] | None,
) -> tuple[ByToken, ByToken]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    scored = TokenRewards.of(trajectories, charges, values)
    if config.whiten_rewards:
        scored = whiten_rewards(scored)
    found, returns = token_advantages.bound(config.adv_estimator, config.advantage)(scored)
    found, returns = (_checked(one, scored.mask.shape, config) for one in (found, returns))
    return scored.by_place(trajectories, found), scored.by_place(trajectories, returns)


def _by_turn(groups: Sequence[Group], config: AlgorithmConfig) -> ByToken:
    """Computes advantages of all groups at once: a turn may be compared with those of groups of other sizes."""
    scored = TurnRewards.of(groups)
    estimate = turn_advantages.bound(config.adv_estimator, config.advantage)
    values = _checked(estimate(scored), scored.mask.shape, config)
    return [_spread(t, values[g, m]) for g, group in enumerate(groups) for m, t in enumerate(group.trajectories)]


def _by_group(groups: Sequence[Group], config: AlgorithmConfig) -> ByToken:
    """Computes advantages size by size: members are compared within their group alone."""
    result: dict[tuple[int, int], Float[np.ndarray, " time"]] = {}
    for size in sorted({len(group.trajectories) for group in groups} - {0}):
        chosen = [index for index, group in enumerate(groups) if len(group.trajectories) == size]
        values = _estimate([groups[index] for index in chosen], config)
        for index, of_group in zip(chosen, values, strict=True):
            for member, trajectory in enumerate(groups[index].trajectories):
                result[index, member] = _spread(trajectory, np.full(len(trajectory.turns), of_group[member]))
    return [result[place] for place in sorted(result)]


def _estimate(groups: Sequence[Group], config: AlgorithmConfig) -> Float[np.ndarray, "groups member"]:
    name = config.adv_estimator
    rewards = np.array([[t.reward for t in group.trajectories] for group in groups], np.float64)
    estimate = advantages.bound(name, config.advantage)
    given = {"greedy": _greedy(groups, name)} if "greedy" in advantages.needs(name, config.advantage) else {}
    return _checked(estimate(rewards, **given), rewards.shape, config)


def _greedy(groups: Sequence[Group], name: str) -> Float[np.ndarray, " groups"]:
    try:
        return np.array([group.trajectories[0].metrics[GREEDY_REWARD] for group in groups], np.float64)
    except KeyError:
        raise ValueError(
            f"algorithm.adv_estimator={name!r}: a trajectory has no metric {GREEDY_REWARD!r}; the workflow must answer "
            "each task once greedily and write down that reward"
        ) from None


def _checked(values: np.ndarray, wanted: tuple[int, ...], config: AlgorithmConfig) -> np.ndarray:
    values = np.asarray(values)
    if values.shape != wanted:
        wrong = f"values of shape {values.shape} for rewards of {wanted}"
    elif not np.isfinite(values).all():
        wrong = f"values that are not finite: {values[~np.isfinite(values)][:3]}"
    else:
        return values
    raise ValueError(f"algorithm.adv_estimator={config.adv_estimator!r}: returned {wrong}")


def _spread(trajectory: Trajectory, by_turn: Float[np.ndarray, " turns"]) -> Float[np.ndarray, " time"]:
    """Spreads values of turns over their tokens; 0 between. There may be more values than turns."""
    values = np.zeros(len(trajectory.token_ids))
    for (start, end), value in zip(trajectory.turns.tolist(), by_turn.tolist(), strict=False):
        values[start:end] = value
    return values
