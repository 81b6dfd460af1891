"""Places of sequences in rows of fixed length, by lengths and prompts alone: shapes of rows, and who lies where.

Sequences that begin with the same prompt may share its places: the first of a *bundle* has them all, those behind it in
its row begin with the prompt's last token, and see the places of the others in the first.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

MAX_ROW_LENGTHS = 3
MAX_HALVINGS = 3  # of the trained places that there is room for
ROW_LENGTH_MULTIPLE = 8  # keeps rows aligned for vector units without padding short rows much

_Each = Int[np.ndarray, " sequences"]


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


class Sequences(NamedTuple):
    """Lengths of sequences, in places.

    Attributes:
        spans: places of each; 0: it goes nowhere.
        shareable: of these the first, whose tokens those of the same ``prompt`` have too; 0: it shares none.
        prompt: number of its prompt.
    """

    spans: _Each
    shareable: _Each
    prompt: _Each

    @classmethod
    def of(cls, prompts: int | _Each, responses: _Each, prompt: _Each | None = None) -> Sequences:
        """Returns those of a prompt and a response of so many tokens; without numbers of the prompts none is shared."""
        spans = prompts + responses - 1
        nothing = np.zeros_like(spans)
        return cls(spans, nothing, nothing) if prompt is None else cls(spans, nothing + prompts - 1, prompt)


class Placement(NamedTuple):
    """Places of sequences in rows.

    Attributes:
        row: of each; -1: nowhere.
        offset: of its first place in the row.
        rank: number within the row, from 1.
        lead: the sequence whose first places are its own first, too; itself, where it has all of its own.
        left_out: places that it has not itself.
        rows: number of rows.
    """

    row: _Each
    offset: _Each
    rank: _Each
    lead: _Each
    left_out: _Each
    rows: int


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


class PackedShape(NamedTuple):
    """Shape that `pack` chooses for a batch, the room for trained places in a row, and the rows that are filled."""

    shape: RowShape
    room: int
    rows: int


def packed_shape(
    prompts: int | _Each, responses: _Each, shapes: Sequence[RowShape], prompt: _Each | None = None
) -> PackedShape:
    """Returns what sequences of a prompt and a response of such lengths, in tokens, lead to; for ``prompt`` see
    `Sequences.of`.
    """
    shape, placement = choose(Sequences.of(prompts, responses, prompt), shapes)
    most, rows = np.bincount(placement.row, weights=responses).max(), placement.rows
    return PackedShape(grown(shape, rows)[-1], min(size for size in rooms(shape.length) if size >= most), rows)


def choose(sequences: Sequences, shapes: Sequence[RowShape]) -> tuple[RowShape, Placement]:
    """Returns the shape that a batch of such sequences is packed into, and where they lie in its rows.

    Of the shapes whose rows hold the longest sequence, it takes the one with the shortest rows (least attention)
    among those whose microbatches have at most 1/16 more places than the fewest. Prompts are shared where that makes
    them fewer.

    Raises:
        ValueError: a sequence is longer than the longest row.
    """
    longest = int(sequences.spans.max(initial=0))
    fitting = [shape for shape in shapes if shape.length >= longest]
    if not fitting:
        raise ValueError(
            f"a sequence has {longest + 1} tokens, a row holds {max(s.length for s in shapes) + 1}: raise "
            "learner.max_tokens_per_row, model.sequence_length, model.max_prompt_tokens or model.max_response_tokens"
        )
    found = [min(_placements(sequences, shape), key=lambda each: each[0]) for shape in fitting]
    least = min(places for places, _ in found)
    chosen = max(index for index, (places, _) in enumerate(found) if places <= least * 17 / 16)
    return fitting[chosen], found[chosen][1]


def _placements(sequences: Sequences, shape: RowShape) -> Iterator[tuple[int, Placement]]:
    """Yields the places of the microbatches that are filled, and who lies where in them: apart, and with shared
    prompts, which leave more of a row empty where few bundles fit in it.
    """
    apart = sequences._replace(shareable=np.zeros_like(sequences.spans))
    for each in (apart, sequences) if sequences.shareable.any() else (apart,):
        placement = placed(each, shape.length)
        yield -(-placement.rows // shape.rows) * shape.rows * shape.length, placement


def placed(sequences: Sequences, capacity: int) -> Placement:
    """Places sequences in rows, those that share a prompt side by side as far as a row holds them."""
    lead, inside, lengths = _bundled(sequences, capacity)
    row_of, offset_of, rows = best_fit_decreasing(lengths, capacity)
    row = np.where(sequences.spans > 0, row_of[lead], -1)
    offset = offset_of[lead] + inside
    order = np.lexsort((offset, row))
    rank = np.zeros(len(row), np.int64)
    rank[order] = np.arange(len(row)) - np.searchsorted(row[order], row[order]) + 1
    left_out = np.where(lead == np.arange(len(row)), 0, sequences.shareable)
    return Placement(row, offset, rank, lead, left_out, rows)


def _bundled(sequences: Sequences, capacity: int) -> tuple[_Each, _Each, _Each]:
    """Returns the first sequence of each one's bundle, its first place within that, and the places of bundles: those of
    sequences that are not the first are 0.
    """
    lead, inside, lengths = np.arange(len(sequences.spans)), np.zeros_like(sequences.spans), sequences.spans.copy()
    begun: dict[int, int] = {}  # bundles that may grow, by their prompt
    for index in np.flatnonzero((sequences.shareable > 0) & (sequences.spans > 0)).tolist():
        prompt, own = int(sequences.prompt[index]), sequences.spans[index] - sequences.shareable[index]
        first = begun.get(prompt)
        if first is None or lengths[first] + own > capacity:
            begun[prompt] = index
            continue
        lead[index], inside[index] = first, lengths[first]
        lengths[first] += own
        lengths[index] = 0
    return lead, inside, lengths


def best_fit_decreasing(
    lengths: Int[np.ndarray, " segments"], capacity: int
) -> tuple[Int[np.ndarray, " segments"], Int[np.ndarray, " segments"], int]:
    """Places segments into as few rows as the heuristic finds: longest first, each into the fullest row that fits it.

    Uses at most 11/9 of the fewest rows possible (Johnson 1973). The result depends on the lengths alone, ties are
    taken in order. Segments of length 0 go nowhere (row −1).

    Args:
        lengths: of the segments, at most `capacity`.
        capacity: of a row.

    Returns:
        Row and offset within the row of each segment, and the number of rows.
    """
    row_of = np.full(len(lengths), -1, np.int64)
    offset_of = np.zeros(len(lengths), np.int64)
    free_rows: list[tuple[int, int]] = []  # (free places, row), sorted
    rows = 0
    sizes = lengths.tolist()
    for index in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[index]
        if size == 0:
            break
        fit = bisect.bisect_left(free_rows, (size, -1))
        if fit < len(free_rows):
            free, row = free_rows.pop(fit)
        else:
            free, row, rows = capacity, rows, rows + 1
        row_of[index], offset_of[index] = row, capacity - free
        if free > size:
            bisect.insort(free_rows, (free - size, row))
    return row_of, offset_of, rows
