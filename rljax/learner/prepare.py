"""Preparation of a step's minibatches from groups: masks, packing, scores before the updates, advantages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from rljax.algorithms.credit_assignment import CreditAssignment, assign_credit
from rljax.algorithms.registry import aggregations, policy_losses
from rljax.algorithms.sample_weights import sample_weights
from rljax.algorithms.shaping import RunningMoments, kept_tokens
from rljax.config.schema import Config
from rljax.config.sizes import (
    demonstration_parts,
    minibatch_size,
    plays_dialogues,
    plays_environments,
    rows_per_trajectory,
    sampled_parts,
    sampled_per_minibatch,
    sequences_per_minibatch,
    trajectories_per_minibatch,
)
from rljax.learner.critic import ValueObjective
from rljax.learner.objective import PolicyObjective
from rljax.learner.packing import Batch, PackedBatch, Scores, abstract_batch, pack, trained_counts
from rljax.learner.routes import with_routes
from rljax.learner.rows import RowShape, grown, packed_shape, rooms, row_shapes
from rljax.learner.scoring import Score, bare, behaviour_divergence, gaps_sharded_as
from rljax.learner.sharding import batch_sharding
from rljax.learner.sharing import expected_prompts, shares_prompts
from rljax.learner.teachers import Teacher, token_weights
from rljax.models.common.params import Params
from rljax.models.common.placing import on_mesh, readable
from rljax.observe.parts import ADVANTAGES, PACK, PLACE, SCORE, part
from rljax.trajectory import Group, Trajectory

AuxState = Mapping[str, Any]


@dataclass(frozen=True)
class Minibatch:
    """Packed trajectories of one optimizer update.

    Attributes:
        trajectories: with what is not trained masked: sampled ones, then demonstrations.
        places: of the sampled ones in the batch.
        tasksets: of the sampled ones.
        group_of: number of each trajectory's group in this minibatch, counted from 0; -1 for demonstrations and beyond
            the last trajectory.
        packed: on the host.
        scores: on the mesh.
    """

    trajectories: Sequence[Trajectory]
    places: Sequence[int]
    tasksets: Sequence[str]
    group_of: Int[np.ndarray, " room"]
    packed: PackedBatch
    scores: Scores = field(default_factory=Scores)

    @property
    def microbatches(self) -> np.int32:
        """Number of filled microbatches."""
        return np.int32(self.packed.microbatches)

    @property
    def sampled(self) -> Sequence[Trajectory]:
        """The trajectories without the demonstrations."""
        return self.trajectories[: len(self.places)]

    def by_token(self, scores: Any) -> list[Float[np.ndarray, " time"]]:
        """Returns scores as values of every token of every sampled trajectory, on the host."""
        found = self.packed.by_token(np.asarray(readable(scores)), [len(t.token_ids) for t in self.trajectories])
        return found[: len(self.places)]

    def with_advantages(self, given: CreditAssignment) -> Minibatch:
        """Returns the minibatch with the advantages and returns of its trajectories;
        demonstrations have no advantage.
        """
        imitated = [np.zeros(len(t.token_ids), np.float32) for t in self.trajectories[len(self.places) :]]

        def scatter(by_place: Sequence[np.ndarray]) -> Any:
            return self.packed.scatter([*(by_place[place] for place in self.places), *imitated])

        scattered = {"advantages": scatter(given.advantages)}
        if given.returns is not None:
            scattered["returns"] = scatter(given.returns)
        return replace(self, packed=replace(self.packed, batch=replace(self.packed.batch, **scattered)))


class Preparation:
    """Makes minibatches of groups.

    Args:
        config: of the run.
        policy: its objective.
        critic: its objective; None without one.
        mesh: that they are placed on.
        teachers: that their tokens are scored by, by name.
    """

    def __init__(
        self,
        config: Config,
        policy: PolicyObjective,
        critic: ValueObjective | None,
        mesh: Mesh,
        teachers: Mapping[str, Teacher] | None = None,
    ) -> None:
        self._config = config
        self.teachers = teachers or {}
        self._mesh = mesh
        self._needs = policy_losses.needs(config.algorithm.pg_variant, config.algorithm.loss)
        self._aggregate = aggregations.bound(config.algorithm.aggregation)
        self._size = minibatch_size(config)
        learner = config.learner
        self._room = trajectories_per_minibatch(config)
        experts = policy.architecture.experts
        self._routes = (
            (policy.architecture.num_layers, experts) if experts and config.algorithm.records_routes else None
        )
        self._shapes = row_shapes(config.row_tokens, learner.rows_per_microbatch, self._room, learner.time_shards)
        self._share = shares_prompts(config, policy.architecture, policy.hardware.platform)
        self.logprobs = Score(policy, lambda params, batch: policy.logprobs(params, batch)[0])
        self.values = Score(critic, critic.values) if critic else None

    def place(self, batch: Batch) -> Batch:
        """Puts a packed batch on the mesh."""
        sharding = batch_sharding(batch.mask.shape, self._mesh)
        return jax.tree.map(lambda array: on_mesh(array, sharding), batch)

    def abstract_batches(self, prompts: Int[np.ndarray, " prompts"] | None = None) -> list[tuple[Batch, bool]]:
        """Returns what `placed` may return before there are scores, by shapes, dtypes and shardings: those that are
        likely first, each with whether it is.

        Args:
            prompts: lengths of some, in tokens; without them all are taken to be as long as they may be.
        """
        sequences = sum(sequences_per_minibatch(self._config))
        shapes = sorted(
            (one for shape in self._shapes for one in grown(shape, sequences)), key=lambda s: s.slots * s.rows
        )
        every = [(shape, room) for shape in shapes for room in rooms(shape.length)]
        likely = list(self._likely_shapes(prompts))
        return [(self._abstract(*one), one in likely) for one in dict.fromkeys([*likely, *every])]

    def _likely_shapes(self, prompts: Int[np.ndarray, " prompts"] | None) -> Iterator[tuple[RowShape, int]]:
        """Yields what trajectories lead to that take all their turns and whose replies are as long as they may be, such
        as are spread evenly over all numbers of turns and all lengths, and dialogues of which an environment says half.
        """
        config, sampled = self._config, sampled_per_minibatch(self._config)
        (most, longest), turns = sampled_parts(config), rows_per_trajectory(config)
        known = None if plays_environments(config) else prompts
        same = expected_prompts(config, self._share)
        asked = np.repeat(most if known is None else known, 1 if same is None else config.group_size)
        asked = np.minimum(np.resize(asked, sampled), config.longest - 1)
        imitated = [np.full(self._room - sampled, part) for part in demonstration_parts(config)]

        def packed(prompt: np.ndarray, response: np.ndarray, played: np.ndarray) -> tuple[RowShape, int]:
            response = np.minimum(response, config.longest - prompt)
            before = np.concatenate([np.repeat(prompt, played), imitated[0]])
            after = np.concatenate([np.repeat(response, played), imitated[1]])
            return packed_shape(before, after, self._shapes, same)[:2]

        whole, all_turns = np.full(sampled, longest), np.full(sampled, turns)
        lengths, numbers = np.linspace(1, longest, sampled), np.linspace(1, turns, sampled)
        if same is not None:  # each group has all lengths
            lengths = lengths[np.argsort(np.arange(sampled) % config.group_size, kind="stable").argsort()]
        yield packed(asked, whole, all_turns)
        yield packed(asked, lengths.astype(np.int64), numbers.astype(np.int64))
        if plays_dialogues(config):
            yield packed(asked + whole // 2, whole - whole // 2, all_turns)

    def _abstract(self, shape: RowShape, room: int) -> Batch:
        batch = abstract_batch(shape, room, self._share)
        if self._config.demonstrations_per_batch:
            batch = replace(batch, expert=batch.mask)
        batch = replace(batch, teacher_weights=dict.fromkeys(self.teachers, batch.advantages))
        if self._routes is not None:
            layers, experts = self._routes
            routes: Any = jax.ShapeDtypeStruct((*batch.mask.shape, layers, experts.per_token), np.int16)
            batch = replace(batch, routes=routes)
        sharding = batch_sharding(batch.mask.shape, self._mesh)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), batch)

    def abstract_scores(self, batch: Batch, has_reference: bool) -> tuple[Batch, Any]:
        """Returns an abstract batch as an update gets it, and the `Minibatch.group_of` beside it."""
        one: Any = jax.ShapeDtypeStruct(batch.places.shape, np.float32, sharding=batch.places.sharding)
        gap = one if "sequences" in self._needs else None
        scores = Scores(
            proximal_logprobs=one if "proximal" in self._needs else None,
            reference_logprobs=one if has_reference else None,
            sequence_gap=gap,
            group_gap=gap,
            values=one if self.values else None,
            teachers=dict.fromkeys(self.teachers, one),
        )
        returns = batch.advantages if self.values else None
        return replace(batch, returns=returns, scores=scores), jax.ShapeDtypeStruct((self._room,), np.int32)

    def minibatches(
        self,
        groups: Sequence[Group],
        step: int,
        params: Params,
        aux_state: AuxState,
        *,
        reused: Sequence[Group] = (),
        demonstrations: Sequence[Trajectory] = (),
        before: Callable[[Sequence[Batch]], None] = lambda batches: None,
    ) -> tuple[list[Minibatch], CreditAssignment]:
        """Returns the minibatches of a batch in its order, scored and with their advantages.

        Args:
            groups: the batch.
            step: batches trained before it.
            params: of the policy before its first update.
            aux_state: see `TrainState`.
            reused: whole groups beside it; each minibatch has its even share of them, in their order.
            demonstrations: imitated beside it; shared out likewise.
            before: called with them as they were packed, before any program has run on one.
        """
        with part(PACK):
            unscored = self._cut(groups, reused, demonstrations, step)
        before([minibatch.packed.batch for minibatch in unscored])
        with part(SCORE):
            cut = [self._scored(minibatch, params, aux_state, step) for minibatch in unscored]
            kl = self._divergences(cut)
            values = _in_order(cut, [m.by_token(m.scores.values) for m in cut]) if self.values else None
        with part(ADVANTAGES):
            given = assign_credit(
                [*groups, *reused],
                self._config.algorithm,
                kl=kl,
                kl_coef=float(aux_state.get("kl_coef", 0.0)),
                values=values,
                moments=RunningMoments(*aux_state.get("moments", ())),
                step=step,
                max_response_tokens=self._config.model.max_response_tokens,
            )
            return [minibatch.with_advantages(given) for minibatch in cut], given

    def placed(self, minibatch: Minibatch) -> Batch:
        """Puts a minibatch on the mesh, with its scores."""
        with part(PLACE):
            return replace(self.place(minibatch.packed.batch), scores=minibatch.scores)

    def summed(self, batch: Batch, minibatch: Minibatch, params: Params) -> Batch:
        """Adds sums of log-ratios over trajectories, at the parameters that an update begins
        with, where the loss needs them.
        """
        if "sequences" not in self._needs:
            return batch
        logprobs = self.logprobs(params, batch, minibatch.microbatches)
        inputs = (logprobs, batch.scores.reference_logprobs, bare(batch), minibatch.group_of)
        gaps = gaps_sharded_as(batch.places.sharding, self._config.autotunes)(*inputs)
        return replace(batch, scores=replace(batch.scores, sequence_gap=gaps[0], group_gap=gaps[1]))

    def _cut(
        self, groups: Sequence[Group], reused: Sequence[Group], demonstrations: Sequence[Trajectory], step: int
    ) -> list[Minibatch]:
        both = [*groups, *reused]
        everyone = [trajectory for group in both for trajectory in group.trajectories]
        keep = [kept_tokens(trajectory, self._config.algorithm, step) for trajectory in everyone]
        importance = sample_weights(both, keep, self._config.algorithm)
        sampled = [
            t if (mask == t.loss_mask).all() else replace(t, loss_mask=mask)
            for t, mask in zip(everyone, keep, strict=True)
        ]
        ends = np.cumsum([0, *(len(group.trajectories) for group in both)])
        numbers = np.repeat(np.arange(len(both), dtype=np.int32), np.diff(ends))
        new, tasksets = int(ends[len(groups)]), [group.task.taskset for group in both]
        cuts = max(-(-new // self._size), min(len(demonstrations), 1))
        if not both:
            cuts = -(-len(demonstrations) // self._size)
        made = []
        for cut in range(cuts):
            again = _share(range(len(groups), len(both)), cut, cuts)
            places = [
                *range(new)[cut * self._size : (cut + 1) * self._size],
                *range(ends[again.start], ends[again.stop]),
            ]
            shown = [demonstrations[i] for i in _share(range(len(demonstrations)), cut, cuts)]
            few = [*(sampled[place] for place in places), *shown]
            group_of = np.full(max(self._room, len(few)), -1, np.int32)
            group_of[: len(places)] = np.unique(numbers[places], return_inverse=True)[1]
            weights = [self._weights(few[: len(places)], importance[places]), self._weights(shown, np.ones(len(shown)))]
            known = [tasksets[numbers[place]] for place in places]
            packed = self._packed(few, known, np.concatenate(weights))
            made.append(Minibatch(few, places, known, group_of, packed))
        return made

    def _weights(
        self, few: Sequence[Trajectory], importance: Float[np.ndarray, " trajectories"]
    ) -> Float[np.ndarray, " sequences"]:
        if not few:
            return np.zeros(0)
        weights = self._aggregate(trained_counts(few), self._config.model.max_response_tokens)
        return weights * np.repeat(importance, [len(t.row_spans) for t in few])

    def _packed(
        self, few: Sequence[Trajectory], tasksets: Sequence[str], weights: Float[np.ndarray, " sequences"]
    ) -> PackedBatch:
        unknown = [np.zeros(len(t.token_ids), np.float32) for t in few]
        packed = pack(few, unknown, weights, self._shapes, self._share)
        if self._routes is not None:
            packed = with_routes(packed, few, *self._routes)
        of_teachers = {
            name: packed.scatter(token_weights(one.settings, few, tasksets)) for name, one in self.teachers.items()
        }
        packed = replace(packed, batch=replace(packed.batch, teacher_weights=of_teachers))
        if not self._config.demonstrations_per_batch:
            return packed
        expert = packed.scatter([np.full(len(t.token_ids), t.expert, np.float32) for t in few]) > 0
        return replace(packed, batch=replace(packed.batch, expert=expert))

    def _scored(self, minibatch: Minibatch, params: Params, aux_state: AuxState, step: int) -> Minibatch:
        if not ("proximal" in self._needs or "reference" in aux_state or self.values or self.teachers):
            return minibatch
        batch, filled = self.place(minibatch.packed.batch), minibatch.microbatches
        others = replace(batch, routes=None)  # whose routers are not those that were recorded
        scores = Scores(
            proximal_logprobs=self.logprobs(params, batch, filled) if "proximal" in self._needs else None,
            reference_logprobs=self.logprobs(aux_state["reference"], others, filled)
            if "reference" in aux_state
            else None,
            values=self.values(aux_state["critic"], others, filled) if self.values else None,
            teachers={
                name: one.scores(minibatch.packed, minibatch.trajectories, minibatch.tasksets, others, step)
                for name, one in self.teachers.items()
            },
        )
        return replace(minibatch, scores=scores)

    def _divergences(self, minibatches: Sequence[Minibatch]) -> list[Float[np.ndarray, " time"]] | None:
        # Of the sampling policy, whose reward the penalty is part of (Ziegler et al. 2019).
        kl = self._config.algorithm.kl
        if kl.where != "reward":
            return None
        found = [
            behaviour_divergence(self.place(m.packed.batch), m.scores.reference_logprobs, kl.resolved_estimator)
            for m in minibatches
        ]
        return _in_order(minibatches, [m.by_token(one) for m, one in zip(minibatches, found, strict=True)])


def _share(of: range, cut: int, cuts: int) -> range:
    """Returns the part of a range that falls to one of so many cuts; their sizes differ by at most one."""
    return of[cut * len(of) // cuts : (cut + 1) * len(of) // cuts]


def _in_order(minibatches: Sequence[Minibatch], found: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Returns values of the minibatches' sampled trajectories, in the order of the batch."""
    places = [place for minibatch in minibatches for place in minibatch.places]
    by_place = dict(zip(places, (one for of_cut in found for one in of_cut), strict=True))
    return [by_place[place] for place in sorted(by_place)]
