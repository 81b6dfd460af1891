"""Packing of trajectories into rows of fixed length, by numpy on the host.

A row holds several *sequences* one after another, separated by segment ids. A trajectory is one sequence, or as many as
it has rows of its own (`Trajectory.rows`). A sequence of n tokens takes at most n − 1 places: each place reads one
token and predicts the next, and what comes after the last trained token changes nothing (attention is causal), so it is
left out, as are sequences without any trained token.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from rljax.trajectory import Trajectory

MAX_ROW_LENGTHS = 3
MAX_HALVINGS = 3  # of the trained places that there is room for
ROW_LENGTH_MULTIPLE = 8  # keeps rows aligned for vector units without padding short rows much


@dataclass(frozen=True)
class RowShape:
    """A shape that a batch can be packed into: ``[slots, rows, length]``.

    Attributes:
        length: tokens of a row.
        rows: rows of a microbatch.
        slots: microbatches that there is room for; the train step runs the filled ones only.
    """

    length: int
    rows: int
    slots: int


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


def row_shapes(row_tokens: int, rows: int, trajectories: int, sequence_shards: int = 1) -> tuple[RowShape, ...]:
    """Returns the few shapes that a run packs into, longest row first; each costs one compilation, when first used.

    The longest row has room for `row_tokens`; the others are a half and a quarter of it, and their microbatches have
    two and four times the rows, so that a microbatch is the same number of tokens in each. Every shape has slots for
    the worst case, one trajectory a row: its size depends on the config alone, and unused slots cost no computation.

    Args:
        row_tokens: tokens of the longest trajectory that a row must hold.
        rows: rows of a microbatch of the longest rows.
        trajectories: most trajectories that are packed at once.
        sequence_shards: devices that a row is sharded over.
    """
    multiple = ROW_LENGTH_MULTIPLE * sequence_shards
    shapes: dict[int, RowShape] = {}
    for halvings in range(MAX_ROW_LENGTHS):
        length = -(-max(row_tokens - 1, 1) // (multiple << halvings)) * multiple
        share = rows << halvings
        shapes.setdefault(length, RowShape(length, share, -(-trajectories // share)))
    return tuple(shapes.values())


def grown(shape: RowShape, sequences: int) -> tuple[RowShape, ...]:
    """Returns the shape with each number of slots that `pack` may give it for so many sequences, fewest first."""
    shapes = [shape]
    while shapes[-1].rows * shapes[-1].slots < sequences:
        shapes.append(replace(shape, slots=2 * shapes[-1].slots))
    return tuple(shapes)


def rooms(length: int) -> tuple[int, ...]:
    """Returns the numbers of trained places that there may be room for in rows of that length, largest first."""
    return tuple(dict.fromkeys(-(-length // (1 << halvings)) for halvings in range(MAX_HALVINGS + 1)))


def packed_shape(
    prompts: int | Int[np.ndarray, " sequences"],
    responses: Int[np.ndarray, " sequences"],
    shapes: Sequence[RowShape],
) -> tuple[RowShape, int]:
    """Returns what `pack` chooses for sequences of a prompt and a response of such lengths, in tokens: the shape, and
    the room for trained places.
    """
    shape, (row, _, _, rows) = _choose(prompts + responses - 1, shapes)
    most = np.bincount(row, weights=responses).max()
    return grown(shape, rows)[-1], min(size for size in rooms(shape.length) if size >= most)


def packed_rows(
    prompts: int | Int[np.ndarray, " sequences"],
    responses: Int[np.ndarray, " sequences"],
    shapes: Sequence[RowShape],
) -> int:
    """Returns the number of rows that `pack` fills with such sequences; see `packed_shape`."""
    return _choose(prompts + responses - 1, shapes)[1][-1]


def abstract_batch(shape: RowShape, room: int) -> Batch:
    """Returns shapes and dtypes of a batch of `pack`, as `jax.ShapeDtypeStruct`."""
    one = pack((), (), np.zeros(0), (replace(shape, slots=1),)).batch
    places: Any = np.zeros((1, shape.rows, room), np.int32)
    one = replace(one, places=places)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((shape.slots, *x.shape[1:]), x.dtype), one)


def best_fit_decreasing(
    lengths: Int[np.ndarray, " segments"], capacity: int
) -> tuple[Int[np.ndarray, " segments"], Int[np.ndarray, " segments"], Int[np.ndarray, " segments"], int]:
    """Places segments into as few rows as the heuristic finds: longest first, each into the fullest row that fits it.

    Uses at most 11/9 of the fewest rows possible (Johnson 1973). The result depends on the lengths alone, ties are
    taken in order. Segments of length 0 go nowhere (row −1).

    Args:
        lengths: of the segments, at most `capacity`.
        capacity: of a row.

    Returns:
        Row, offset within the row and rank within the row (from 1) of each segment, and the number of rows.
    """
    row_of = np.full(len(lengths), -1, np.int64)
    offset_of = np.zeros(len(lengths), np.int64)
    rank_of = np.zeros(len(lengths), np.int64)
    free_rows: list[tuple[int, int]] = []  # (free places, row), sorted
    ranks: list[int] = []
    sizes = lengths.tolist()
    for index in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[index]
        if size == 0:
            break
        fit = bisect.bisect_left(free_rows, (size, -1))
        if fit < len(free_rows):
            free, row = free_rows.pop(fit)
        else:
            free, row = capacity, len(ranks)
            ranks.append(0)
        ranks[row] += 1
        row_of[index], offset_of[index], rank_of[index] = row, capacity - free, ranks[row]
        if free > size:
            bisect.insort(free_rows, (free - size, row))
    return row_of, offset_of, rank_of, len(ranks)


def trained_counts(trajectories: Sequence[Trajectory]) -> Int[np.ndarray, " sequences"]:
    """Returns the number of trained tokens of each sequence."""
    return np.array([np.count_nonzero(t.loss_mask[a:b]) for t in trajectories for a, b in t.row_spans], np.int64)


def pack(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Float[np.ndarray, " time"]],
    weights: Float[np.ndarray, " sequences"],
    shapes: Sequence[RowShape],
) -> PackedBatch:
    """Packs the trajectories of one optimizer update. A pure function of its arguments.

    Of the shapes whose rows hold the longest sequence, it takes the one with the shortest rows (least attention)
    among those whose microbatches have at most 1/16 more places than the fewest.

    Args:
        trajectories: in batch order.
        advantages: of each token of each trajectory.
        weights: of each trained token of each sequence, in the order of `trained_counts`.
        shapes: what to choose from, as `row_shapes` makes them. A batch of more sequences than they are for gets
            twice the slots as often as it takes: see `grown`.

    Raises:
        ValueError: a sequence is longer than the longest row, or trains its first token, which nothing predicts.
    """
    mask, starts, spans = _sequences(trajectories)
    whose = np.repeat(np.arange(len(trajectories)), [len(t.row_spans) for t in trajectories])
    shape, (row, offset, rank, rows) = _choose(spans, shapes)
    microbatches, slots = -(-rows // shape.rows), grown(shape, rows)[-1].slots
    inside = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
    source = np.repeat(starts, spans) + inside
    target = np.repeat(row * shape.length + offset, spans) + inside

    def scatter(values: np.ndarray, dtype: type, fill: float = 0) -> Any:  # numpy here, JAX on the device
        scattered: np.ndarray = np.full(slots * shape.rows * shape.length, fill, dtype)
        scattered[target] = values
        return scattered.reshape(slots, shape.rows, shape.length)

    def of_trajectory(name: str) -> np.ndarray:
        return np.repeat(np.array([getattr(t, name) for t in trajectories], np.float32)[whose], spans)

    token_ids = np.concatenate([t.token_ids for t in trajectories] or [np.zeros(0, np.int32)])
    logprobs = np.concatenate([t.logprobs for t in trajectories] or [np.zeros(0, np.float32)])
    versions = np.concatenate([t.versions for t in trajectories] or [np.zeros(0, np.int32)])
    predicted = mask[source + 1]
    batch = Batch(
        token_ids=scatter(token_ids[source], np.int32),
        positions=scatter(inside, np.int32),
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
    )
    fill = len(source) / (microbatches * shape.rows * shape.length) if microbatches else 1.0
    trained = source[predicted] + 1, target[predicted]
    return PackedBatch(batch, microbatches, int(mask.sum()), fill, *trained, source, target)


def _sequences(
    trajectories: Sequence[Trajectory],
) -> tuple[Bool[np.ndarray, " tokens"], Int[np.ndarray, " sequences"], Int[np.ndarray, " sequences"]]:
    """Returns the mask of all tokens, and of each sequence its first token, counted through all, and the places that it
    takes.
    """
    mask = np.concatenate([t.loss_mask for t in trajectories] or [np.zeros(0, np.bool_)])
    counts = np.array([b - a for t in trajectories for a, b in t.row_spans], np.int64)
    starts = np.cumsum(counts) - counts
    if mask[starts[counts > 0]].any():
        raise ValueError("a trajectory trains its first token, but nothing comes before it that could predict it")
    trained = np.flatnonzero(mask)
    owners = np.repeat(np.arange(len(counts)), counts)[trained]
    spans = np.zeros(len(counts), np.int64)
    spans[owners] = trained - starts[owners]  # the last assignment stays: the last trained token of each
    return mask, starts, spans


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


Placement = tuple[np.ndarray, np.ndarray, np.ndarray, int]


def _choose(spans: Int[np.ndarray, " sequences"], shapes: Sequence[RowShape]) -> tuple[RowShape, Placement]:
    longest = int(spans.max(initial=0))
    fitting = [shape for shape in shapes if shape.length >= longest]
    if not fitting:
        raise ValueError(
            f"a sequence has {longest + 1} tokens, a row holds {max(s.length for s in shapes) + 1}: raise "
            "learner.max_tokens_per_row, model.sequence_length, model.max_prompt_tokens or model.max_response_tokens"
        )
    placements = [best_fit_decreasing(spans, shape.length) for shape in fitting]
    computed = [
        -(-rows // shape.rows) * shape.rows * shape.length
        for shape, (*_, rows) in zip(fitting, placements, strict=True)
    ]
    chosen = max(index for index, places in enumerate(computed) if places <= min(computed) * 17 / 16)
    return fitting[chosen], placements[chosen]
