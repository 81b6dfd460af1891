"""Inputs of advantage estimators and policy losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rljax.algorithms.ratios import bounded_exp, floored, log_difference
from rljax.trajectory import Group, Trajectory

TokenLoss = tuple[Float[Array, "batch time"], dict[str, Float[Array, "batch time"]]]
"""Loss of each token, and per-token values by the name of their metric; neither means anything where not trained."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossInputs:
    """The trained tokens of one microbatch, row by row in order; every array is ``[batch, time]`` and float32 unless
    said otherwise.

    Attributes:
        logprobs: of the policy that is trained, in nats, at the temperature that the token was sampled at.
        behaviour_logprobs: of the policy that sampled the token, as recorded when it did (promise P6).
        advantages: of the token's trajectory.
        rewards: of the token's trajectory.
        mask: bool; true where a token is trained. The other arrays mean nothing elsewhere.
        segment_ids: int32; equal for the tokens of one sequence within a row, 0 for padding. Makes sequence-level
            ratios possible. A sequence is a trajectory, or one of its rows (`Trajectory.rows`).
        turn_ids: int32; equal for the tokens of one turn within a sequence.
        updates: int32 scalar; optimizer updates made before this one, for schedules.
        proximal_logprobs: of the policy as it was before the first update of the batch, recomputed by the learner.
            None where the loss does not need "proximal".
        reference_logprobs: of the frozen reference policy. None where nothing needs "reference".
        sequence_gap: of the token's whole trajectory, Σ logπ − logπ_ref over all its trained tokens, at the parameters
            that the gradient is taken at, as a constant. None where the loss does not need "sequences".
        group_gap: mean of the `sequence_gap` of the token's group. None likewise.
        expert: bool; true where a demonstration, not the policy, says the token. None where there are none.
    """

    logprobs: Float[Array, "batch time"]
    behaviour_logprobs: Float[Array, "batch time"]
    advantages: Float[Array, "batch time"]
    rewards: Float[Array, "batch time"]
    mask: Bool[Array, "batch time"]
    segment_ids: Int[Array, "batch time"]
    turn_ids: Int[Array, "batch time"]
    updates: Int[Array, ""]
    proximal_logprobs: Float[Array, "batch time"] | None = None
    reference_logprobs: Float[Array, "batch time"] | None = None
    sequence_gap: Float[Array, "batch time"] | None = None
    group_gap: Float[Array, "batch time"] | None = None
    expert: Bool[Array, "batch time"] | None = None

    @property
    def bounded_logprobs(self) -> Float[Array, "batch time"]:
        """logπ, at least −100; 0 where not trained. Losses read this, so that −inf gives no NaN; see `ratios`."""
        return floored(self.logprobs, self.mask)

    @property
    def sampled(self) -> Bool[Array, "batch time"]:
        """bool; true where a token is trained that the behaviour policy sampled, so not on demonstrations."""
        return self.mask if self.expert is None else self.mask & ~self.expert

    @property
    def log_ratio(self) -> Float[Array, "batch time"]:
        """logπ − logπ_behaviour, each at least −100; 0 where not trained, so that no masked token changes a loss, and
        on demonstrations, which have no behaviour policy.
        """
        return log_difference(self.logprobs, self.behaviour_logprobs, self.sampled)

    @property
    def ratio(self) -> Float[Array, "batch time"]:
        """ρ = π / π_behaviour between e^−20 and e^20; 1 where not trained, and on demonstrations."""
        return bounded_exp(self.log_ratio)

    def needed(self, name: str) -> Float[Array, "batch time"]:
        """Returns the array of that name, for a loss that cannot do without it.

        Raises:
            ValueError: it is None, because the loss was not registered with the need.
        """
        values = getattr(self, name)
        if values is None:
            raise ValueError(f"the policy loss reads {name}, which nothing computed: register it with its needs")
        return values


@dataclass(frozen=True)
class TurnRewards:
    """Groups of a batch, turn by turn: the input of an estimator of per-turn advantages.

    A group that has fewer members than the largest is filled up with members that have no turn.

    Attributes:
        rewards: float64, the score of each whole trajectory; 0 where there is no member.
        members: true where there is a member.
        turn_rewards: float64, what each turn earned; 0 beyond the last turn.
        mask: true where there is a turn.
        states: state before each turn, by group, member and turn; equal strings are equal states. Not filled up.
        tags: taskset of each group.
    """

    rewards: Float[np.ndarray, "groups member"]
    members: Bool[np.ndarray, "groups member"]
    turn_rewards: Float[np.ndarray, "groups member turn"]
    mask: Bool[np.ndarray, "groups member turn"]
    states: tuple[tuple[tuple[str, ...], ...], ...]
    tags: tuple[str, ...]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> TurnRewards:
        """Lays out the groups of a batch, of whatever sizes."""
        size = max((len(group.trajectories) for group in groups), default=0)
        most = max((len(t.turns) for group in groups for t in group.trajectories), default=0)
        rewards, members = np.zeros((len(groups), size)), np.zeros((len(groups), size), np.bool_)
        turn_rewards = np.zeros((len(groups), size, most))
        mask = np.zeros(turn_rewards.shape, np.bool_)
        for g, group in enumerate(groups):
            for m, trajectory in enumerate(group.trajectories):
                turns = len(trajectory.turns)
                rewards[g, m], members[g, m] = trajectory.reward, True
                turn_rewards[g, m, :turns], mask[g, m, :turns] = trajectory.rewards_by_turn, True
        return cls(
            rewards,
            members,
            turn_rewards,
            mask,
            tuple(tuple(t.turn_states for t in group.trajectories) for group in groups),
            tuple(group.task.taskset for group in groups),
        )


@dataclass(frozen=True)
class TokenRewards:
    """Sampled tokens of a batch's trajectories: the input of an estimator of per-token advantages.

    Prompts and the text of environments are left out: a trajectory's sampled tokens lie side by side from the left, in
    order, and are filled up with 0 on the right.

    Attributes:
        rewards: float64, what each token earned. The reward of a turn is its last token's; that of a turn without
            tokens goes to the token before, or the first after, where there is one.
        mask: true where there is a token.
        values: float64, the critic's value of everything before the token. None where there is no critic.
    """

    rewards: Float[np.ndarray, "trajectory token"]
    mask: Bool[np.ndarray, "trajectory token"]
    values: Float[np.ndarray, "trajectory token"] | None = None

    @classmethod
    def of(
        cls,
        trajectories: Sequence[Trajectory],
        charges: Sequence[Float[np.ndarray, " time"]] | None = None,
        values: Sequence[Float[np.ndarray, " time"]] | None = None,
    ) -> TokenRewards:
        """Lays out trajectories.

        Args:
            trajectories: of the batch.
            charges: subtracted from the reward of each token of each trajectory; read where a token was sampled.
            values: of each token of each trajectory; read where a token was sampled.
        """
        counts = [int(t.loss_mask.sum()) for t in trajectories]
        mask = np.arange(max(counts, default=0)) < np.array(counts, np.int64)[:, None]

        def laid(by_place: Sequence[Float[np.ndarray, " time"]]) -> Float[np.ndarray, "trajectory token"]:
            side_by_side = np.zeros(mask.shape)
            sampled = [one[t.loss_mask] for one, t in zip(by_place, trajectories, strict=True)]
            side_by_side[mask] = np.concatenate([np.zeros(0), *sampled])
            return side_by_side

        rewards = np.zeros(mask.shape)
        for row, trajectory in enumerate(trajectories):
            sampled = np.append(0, np.cumsum(trajectory.loss_mask))
            last = np.maximum(sampled[trajectory.turns[:, 1]] - 1, 0)
            if counts[row]:
                np.add.at(rewards[row], last, trajectory.rewards_by_turn)
        if charges is not None:
            rewards -= laid(charges)
        return cls(rewards, mask, None if values is None else laid(values))

    def by_place(
        self, trajectories: Sequence[Trajectory], found: Float[np.ndarray, "trajectory token"]
    ) -> list[Float[np.ndarray, " time"]]:
        """Scatters values of the sampled tokens to their places in their trajectories; 0 where nothing was sampled."""
        result = []
        for trajectory, row, mask in zip(trajectories, found, self.mask, strict=True):
            placed = np.zeros(len(trajectory.loss_mask))
            placed[trajectory.loss_mask] = row[mask]
            result.append(placed)
        return result
