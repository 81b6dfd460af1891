"""From groups to the minibatches of a step: masks, packing, what is scored beforehand, advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from rljax.algorithms.credit import Credit, credit
from rljax.algorithms.kl import kl_penalty
from rljax.algorithms.registry import aggregations, policy_losses
from rljax.algorithms.sample_weights import sample_weights
from rljax.algorithms.shaping import RunningMoments, kept_tokens
from rljax.config import Config
from rljax.learner.critic import ValueObjective
from rljax.learner.objective import PolicyObjective
from rljax.learner.packing import Batch, PackedBatch, Scores, pack, row_shapes, trained_counts
from rljax.learner.scoring import make_score, sequence_gaps
from rljax.learner.sharding import batch_sharding
from rljax.models.transformer import Params
from rljax.trajectory import Group, Trajectory

Companions = Mapping[str, Any]


@dataclass(frozen=True)
class Minibatch:
    """The trajectories of one update.

    Attributes:
        trajectories: with what is not trained masked.
        group_of: number of each trajectory's group; -1 beyond the last trajectory.
        packed: on the host.
        scores: on the mesh.
    """

    trajectories: Sequence[Trajectory]
    group_of: Int[np.ndarray, " room"]
    packed: PackedBatch
    scores: Scores = field(default_factory=Scores)

    @property
    def microbatches(self) -> np.int32:
        """Filled ones."""
        return np.int32(self.packed.microbatches)

    def by_token(self, scores: Any) -> list[Float[np.ndarray, " time"]]:
        """Scores as values of every token of every trajectory, on the host."""
        return self.packed.by_token(np.asarray(scores), [len(t.token_ids) for t in self.trajectories])

    def with_credit(self, advantages: Sequence[np.ndarray], returns: Sequence[np.ndarray] | None) -> Minibatch:
        """Of tokens, trajectory by trajectory."""
        laid = {"advantages": self.packed.lay(advantages)}
        if returns is not None:
            laid["returns"] = self.packed.lay(returns)
        return replace(self, packed=replace(self.packed, batch=replace(self.packed.batch, **laid)))


class Preparation:
    """Makes minibatches of groups.

    Args:
        config: of the run.
        policy: its objective.
        critic: its objective; None without one.
        mesh: that they are placed on.
    """

    def __init__(self, config: Config, policy: PolicyObjective, critic: ValueObjective | None, mesh: Mesh) -> None:
        self._config = config
        self._mesh = mesh
        self._needs = policy_losses.needs(config.algorithm.pg_variant, config.algorithm)
        self._aggregate = aggregations.get(config.algorithm.aggregation)
        self._size = config.algorithm.minibatch_size or config.rollout_batch_size
        learner = config.learner
        self._shapes = row_shapes(config.row_tokens, learner.rows_per_microbatch, self._size, learner.mesh.sequence)
        self.logprobs = make_score(policy, lambda params, batch: policy.logprobs(params, batch)[0])
        self.values = make_score(critic, critic.values) if critic else None

    def place(self, batch: Batch) -> Batch:
        """A packed batch on the mesh."""
        sharding = batch_sharding(batch.mask.shape, self._mesh)
        return jax.device_put(batch, jax.tree.map(lambda _: sharding, batch))

    def minibatches(
        self, groups: Sequence[Group], step: int, params: Params, companions: Companions
    ) -> tuple[list[Minibatch], Credit]:
        """The minibatches of a batch in its order, scored and with their advantages.

        Args:
            groups: the batch.
            step: batches trained before it.
            params: of the policy before its first update.
            companions: see `TrainState`.
        """
        cut = [self._scored(minibatch, params, companions) for minibatch in self._cut(groups, step)]
        given = credit(
            groups,
            self._config.algorithm,
            kl=self._divergences(cut),
            kl_coef=float(companions.get("kl_coef", 0.0)),
            values=[v for m in cut for v in m.by_token(m.scores.values)] if self.values else None,
            moments=RunningMoments(*companions.get("moments", ())),
            step=step,
            max_response_tokens=self._config.model.max_response_tokens,
        )
        done, at = [], 0
        for minibatch in cut:
            mine = slice(at, at := at + len(minibatch.trajectories))
            done.append(minibatch.with_credit(given.advantages[mine], given.returns and given.returns[mine]))
        return done, given

    def placed(self, minibatch: Minibatch) -> Batch:
        """A minibatch on the mesh, with its scores."""
        return replace(self.place(minibatch.packed.batch), scores=minibatch.scores)

    def summed(self, batch: Batch, minibatch: Minibatch, params: Params) -> Batch:
        """Where the loss asks for it, with what is summed over trajectories at the parameters an update begins with."""
        if "sequences" not in self._needs:
            return batch
        logprobs = self.logprobs(params, batch, minibatch.microbatches)
        gaps = sequence_gaps(logprobs, batch.scores.reference_logprobs, batch, minibatch.group_of)
        return replace(batch, scores=replace(batch.scores, sequence_gap=gaps[0], group_gap=gaps[1]))

    def _cut(self, groups: Sequence[Group], step: int) -> list[Minibatch]:
        everyone = [trajectory for group in groups for trajectory in group.trajectories]
        keep = [kept_tokens(trajectory, self._config.algorithm, step) for trajectory in everyone]
        importance = sample_weights(groups, keep, self._config.algorithm)
        trajectories = [replace(t, loss_mask=mask) for t, mask in zip(everyone, keep, strict=True)]
        numbers = np.repeat(np.arange(len(groups), dtype=np.int32), [len(group.trajectories) for group in groups])
        made = []
        for start in range(0, len(trajectories), self._size):
            chosen = slice(start, start + self._size)
            few = trajectories[chosen]
            rows = [len(t.row_spans) for t in few]
            weights = self._aggregate(trained_counts(few), self._config.model.max_response_tokens)
            unknown = [np.zeros(len(t.token_ids), np.float32) for t in few]
            packed = pack(few, unknown, weights * np.repeat(importance[chosen], rows), self._shapes)
            group_of = np.full(max(self._size, len(few)), -1, np.int32)
            group_of[: len(few)] = numbers[chosen]
            made.append(Minibatch(few, group_of, packed))
        return made

    def _scored(self, minibatch: Minibatch, params: Params, companions: Companions) -> Minibatch:
        if not ("proximal" in self._needs or "reference" in companions or self.values):
            return minibatch
        batch, filled = self.place(minibatch.packed.batch), minibatch.microbatches
        scores = Scores(
            proximal_logprobs=self.logprobs(params, batch, filled) if "proximal" in self._needs else None,
            reference_logprobs=self.logprobs(companions["reference"], batch, filled)
            if "reference" in companions
            else None,
            values=self.values(companions["critic"], batch, filled) if self.values else None,
        )
        return replace(minibatch, scores=scores)

    def _divergences(self, minibatches: Sequence[Minibatch]) -> list[Float[np.ndarray, " time"]] | None:
        # Of the policy that sampled: its reward is what the penalty is part of (Ziegler et al. 2019).
        kl = self._config.algorithm.kl
        if kl.where != "reward":
            return None
        return [
            np.where(t.loss_mask, kl_penalty(jnp.asarray(t.logprobs), jnp.asarray(reference), kl.estimator), 0.0)
            for m in minibatches
            for t, reference in zip(m.trajectories, m.by_token(m.scores.reference_logprobs), strict=True)
        ]
