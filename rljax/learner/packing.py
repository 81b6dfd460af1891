"""Packing of trajectories into rows of fixed length, by numpy on the host.

A row holds several *sequences* one after another, separated by segment ids. A trajectory is one sequence, or as many as
it has rows of its own (`Trajectory.rows`). A sequence of n tokens takes at most n − 1 places: each place reads one
token and predicts the next, and what comes after the last trained token changes nothing (attention is causal), so it is
left out, as are sequences without any trained token. Sequences with the same prompt may share its places: see
`rljax.learner.rows`. What a trained place sees is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from rljax.learner.rows import RowShape, Sequences, choose, grown, rooms
from rljax.trajectory import Trajectory


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """Forward-pass results for the trained places of a batch before its updates, float32; None where not needed.

    Attributes:
        proximal_logprobs: of the policy as it was before the first update of the batch.
        reference_logprobs: of the reference policy.
        sequence_gap, group_gap: see `LossInputs`.
        values: of the critic as it was before the batch.
        teachers: log-probabilities of each teacher, by name; empty without any.
    """

    proximal_logprobs: Float[Array, "*slot row place"] | None = None
    reference_logprobs: Float[Array, "*slot row place"] | None = None
    sequence_gap: Float[Array, "*slot row place"] | None = None
    group_gap: Float[Array, "*slot row place"] | None = None
    values: Float[Array, "*slot row place"] | None = None
    teachers: Mapping[str, Float[Array, "*slot row place"]] = field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Packed rows, every array ``[slot, row, time]`` on the host and ``[row, time]`` within one microbatch.

    `places` and `scores` are shorter: as long as the row with the most trained targets needs, rounded up to a row's
    length or a half, a quarter, an eighth of it.

    Attributes:
        token_ids, positions: what the model reads; positions count from 0 within a sequence.
        segment_ids: int32, counted from 1 within a row; 0 is padding.
        targets: the token that comes next in the same sequence.
        mask: whether the target is trained.
        turns: int32, which turn of its trajectory the target belongs to, counted from 0.
        owners: int32, which trajectory of the update the target belongs to, counted from 0; 0 for padding.
        behaviour_logprobs: recorded log-probability of the target, in nats.
        versions: int32, weight version that sampled the target.
        advantages: of the target.
        rewards, temperature: of the trajectory.
        weights: what the target's loss is multiplied by; 0 where not trained. See `algorithms.registry.Aggregation`.
        places: where in a row the mask is true, in order, filled up with the row's length.
        shared: int32, first and last place in the row of what a token sees besides its own sequence: the prompt that
            this shares; (0, −1) where there is none. None where nothing is shared.
        returns: of the target, for a critic; None without one.
        expert: whether the target is a demonstration's; None in a run without any.
        teacher_weights: weight of each teacher's reverse KL in the target's advantage, by name; empty without any.
        routes: int16, experts that an engine sent each token to, -1 where nobody knows; None without any.
        scores: of the targets at `places`.
    """

    token_ids: Int[Array, "*slot row time"]
    positions: Int[Array, "*slot row time"]
    segment_ids: Int[Array, "*slot row time"]
    targets: Int[Array, "*slot row time"]
    mask: Bool[Array, "*slot row time"]
    turns: Int[Array, "*slot row time"]
    owners: Int[Array, "*slot row time"]
    behaviour_logprobs: Float[Array, "*slot row time"]
    versions: Int[Array, "*slot row time"]
    advantages: Float[Array, "*slot row time"]
    rewards: Float[Array, "*slot row time"]
    temperature: Float[Array, "*slot row time"]
    weights: Float[Array, "*slot row time"]
    places: Int[Array, "*slot row place"]
    shared: Int[Array, "*slot row time 2"] | None = None
    returns: Float[Array, "*slot row time"] | None = None
    expert: Bool[Array, "*slot row time"] | None = None
    teacher_weights: Mapping[str, Float[Array, "*slot row time"]] = field(default_factory=dict)
    routes: Int[Array, "*slot row time layers picked"] | None = None
    scores: Scores = field(default_factory=Scores)

    def trained(self, values: Shaped[Array, "row time *rest"]) -> Shaped[Array, "row place *rest"]:
        """Selects an array's values at the trained places of one microbatch; beyond a
        row's last one they mean nothing.
        """
        places = self.places.reshape(*self.places.shape, *[1] * (values.ndim - 2))
        return jnp.take_along_axis(values, places, axis=1, mode="clip")


@dataclass(frozen=True)
class PackedBatch:
    """A packed batch, the number of its filled microbatches, and the origin of each trained target.

    Attributes:
        batch: numpy arrays.
        microbatches: filled ones; they come first.
        trained_tokens: targets under the mask.
        fill: share of the filled microbatches' places that hold a token; 1 where there is none.
        sources: which token each trained target is, counted through all tokens of all trajectories.
        spots: index of each trained target, counted through all ``[slot, row, time]``.
        read: which token each token that the model reads is, counted as `sources` are.
        filled: its index, counted as `spots` are.
    """

    batch: Batch
    microbatches: int
    trained_tokens: int
    fill: float
    sources: Int[np.ndarray, " trained"]
    spots: Int[np.ndarray, " trained"]
    read: Int[np.ndarray, " read"]
    filled: Int[np.ndarray, " read"]

    def scatter(self, values: Sequence[Float[np.ndarray, " time"]]) -> Any:
        """Scatters values of every token of every trajectory into a float32 ``[slot, row,
        time]`` array, 0 where not trained.
        """
        scattered = np.zeros(self.batch.mask.shape, np.float32)
        scattered.reshape(-1)[self.spots] = np.concatenate(values)[self.sources]
        return scattered

    def at_places(self, values: Sequence[Float[np.ndarray, " time"]]) -> Float[np.ndarray, "slot row place"]:
        """Returns values of every token of every trajectory as scores at `Batch.places`, 0 where not trained."""
        scattered, places = self.scatter(values), np.asarray(self.batch.places)
        last = scattered.shape[-1] - 1
        return np.where(places <= last, np.take_along_axis(scattered, np.minimum(places, last), axis=-1), 0)

    def by_token(self, scores: Float[np.ndarray, "slot row place"], counts: Sequence[int]) -> list[np.ndarray]:
        """Gathers scores at the trained places as float32 values of every token of every
        trajectory, 0 where not trained.

        Args:
            scores: at `Batch.places`.
            counts: tokens of each trajectory.
        """
        scattered = np.zeros((*self.batch.mask.shape[:2], self.batch.mask.shape[2] + 1), np.float32)
        np.put_along_axis(scattered, np.asarray(self.batch.places), scores, axis=-1)  # padding goes last
        tokens = np.zeros(sum(counts), np.float32)
        tokens[self.sources] = scattered[..., :-1].reshape(-1)[self.spots]
        return np.split(tokens, np.cumsum(counts)[:-1])


def abstract_batch(shape: RowShape, room: int, share: bool = False) -> Batch:
    """Returns shapes and dtypes of a batch of `pack`, as `jax.ShapeDtypeStruct`."""
    one = pack((), (), np.zeros(0), (replace(shape, slots=1),), share).batch
    places: Any = np.zeros((1, shape.rows, room), np.int32)
    one = replace(one, places=places)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((shape.slots, *x.shape[1:]), x.dtype), one)


def trained_counts(trajectories: Sequence[Trajectory]) -> Int[np.ndarray, " sequences"]:
    """Returns the number of trained tokens of each sequence."""
    return np.array([np.count_nonzero(t.loss_mask[a:b]) for t in trajectories for a, b in t.row_spans], np.int64)


def pack(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Float[np.ndarray, " time"]],
    weights: Float[np.ndarray, " sequences"],
    shapes: Sequence[RowShape],
    share: bool = False,
) -> PackedBatch:
    """Packs the trajectories of one optimizer update, as `choose` says. A pure function of its arguments.

    Args:
        trajectories: in batch order.
        advantages: of each token of each trajectory.
        weights: of each trained token of each sequence, in the order of `trained_counts`.
        shapes: what to choose from, as `row_shapes` makes them. A batch of more sequences than they are for gets
            twice the slots as often as it takes: see `grown`.
        share: whether sequences of a row that begin with the same prompt share its places.

    Raises:
        ValueError: a sequence is longer than the longest row, or trains its first token, which nothing predicts.
    """
    token_ids = _joined(trajectories, "token_ids")
    mask, starts, sequences = _sequences(trajectories, token_ids, share)
    whose = np.repeat(np.arange(len(trajectories)), [len(t.row_spans) for t in trajectories])
    shape, (row, offset, rank, lead, left_out, rows) = choose(sequences, shapes)
    microbatches, slots = -(-rows // shape.rows), grown(shape, rows)[-1].slots
    spans = sequences.spans - left_out
    inside = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
    source = np.repeat(starts + left_out, spans) + inside
    target = np.repeat(row * shape.length + offset, spans) + inside

    def scatter(values: np.ndarray, dtype: type, fill: float = 0) -> Any:  # numpy here, JAX on the device
        scattered: np.ndarray = np.full(slots * shape.rows * shape.length, fill, dtype)
        scattered[target] = values
        return scattered.reshape(slots, shape.rows, shape.length)

    def of_trajectory(name: str) -> np.ndarray:
        return np.repeat(np.array([getattr(t, name) for t in trajectories], np.float32)[whose], spans)

    logprobs, versions = (_joined(trajectories, name) for name in ("logprobs", "versions"))
    predicted = mask[source + 1]
    batch = Batch(
        token_ids=scatter(token_ids[source], np.int32),
        positions=scatter(inside + np.repeat(left_out, spans), np.int32),
        segment_ids=scatter(np.repeat(rank, spans), np.int32),
        targets=scatter(token_ids[source + 1], np.int32),
        mask=scatter(predicted, np.bool_),
        turns=scatter(np.concatenate([*map(_turn_numbers, trajectories), np.zeros(0, np.int32)])[source + 1], np.int32),
        owners=scatter(np.repeat(whose, spans), np.int32),
        behaviour_logprobs=scatter(np.where(predicted, logprobs[source + 1], 0), np.float32),
        versions=scatter(np.where(predicted, versions[source + 1], 0), np.int32),
        advantages=scatter(np.concatenate([*advantages, np.zeros(0, np.float32)])[source + 1], np.float32),
        rewards=scatter(of_trajectory("reward"), np.float32),
        temperature=scatter(of_trajectory("temperature"), np.float32, 1),
        weights=scatter(np.where(predicted, np.repeat(weights, spans), 0), np.float32),
        places=_places(target[predicted], slots * shape.rows, shape.length).reshape(slots, shape.rows, -1),
        shared=_shared(scatter, np.where(left_out > 0, offset[lead], 0), left_out, spans) if share else None,
    )
    fill = len(source) / (microbatches * shape.rows * shape.length) if microbatches else 1.0
    trained = source[predicted] + 1, target[predicted]
    return PackedBatch(batch, microbatches, int(mask.sum()), fill, *trained, source, target)


def _sequences(
    trajectories: Sequence[Trajectory], token_ids: Int[np.ndarray, " tokens"], share: bool
) -> tuple[Bool[np.ndarray, " tokens"], Int[np.ndarray, " sequences"], Sequences]:
    """Returns the mask of all tokens, and of each sequence its first token, counted through all, and what it takes."""
    mask = np.concatenate([t.loss_mask for t in trajectories] or [np.zeros(0, np.bool_)])
    counts = np.array([b - a for t in trajectories for a, b in t.row_spans], np.int64)
    starts = np.cumsum(counts) - counts
    if mask[starts[counts > 0]].any():
        raise ValueError("a trajectory trains its first token, but nothing comes before it that could predict it")
    trained = np.flatnonzero(mask)
    owners = np.repeat(np.arange(len(counts)), counts)[trained]
    spans, shareable, prompt = (np.zeros(len(counts), np.int64) for _ in range(3))
    spans[owners] = trained - starts[owners]  # the last assignment stays: the last trained token of each
    if share:
        shareable[owners[::-1]] = (trained - starts[owners])[::-1] - 1  # without the token that predicts the first
        numbers: dict[bytes, int] = {}
        for index, (start, length) in enumerate(zip(starts.tolist(), shareable.tolist(), strict=True)):
            prompt[index] = numbers.setdefault(token_ids[start : start + length].tobytes(), index)
    return mask, starts, Sequences(spans, shareable, prompt)


def _joined(trajectories: Sequence[Trajectory], name: str) -> np.ndarray:
    return np.concatenate([getattr(t, name) for t in trajectories] or [np.zeros(0, np.int32)])


def _shared(scatter: Callable[..., Any], first: np.ndarray, places: np.ndarray, spans: np.ndarray) -> Any:
    """Returns `Batch.shared` of sequences that share so many places, from that one of their row on."""
    ends = (first, 0), (first + places - 1, -1)
    return np.stack([scatter(np.repeat(at, spans), np.int32, fill) for at, fill in ends], axis=-1)


def _turn_numbers(trajectory: Trajectory) -> Int[np.ndarray, " time"]:
    numbers = np.zeros(len(trajectory.token_ids), np.int32)
    for number, (start, end) in enumerate(trajectory.turns.tolist()):
        numbers[start:end] = number
    return numbers


def _places(trained: Int[np.ndarray, " tokens"], rows: int, length: int) -> Any:
    row, place = np.divmod(np.sort(trained), length)
    counts = np.bincount(row, minlength=rows)
    room = min(size for size in rooms(length) if size >= counts.max(initial=0))
    places = np.full((rows, room), length, np.int32)
    places[row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)] = place
    return places
