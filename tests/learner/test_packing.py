import time

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.learner.packing import PackedBatch, pack, trained_counts
from rljax.learner.rows import RowShape, best_fit_decreasing, grown, row_shapes
from rljax.trajectory import Trajectory
from tests.learner.made_up import make_groups, make_trajectory, trajectories_of

SHAPES = (RowShape(32, 2, 8), RowShape(16, 4, 4), RowShape(8, 8, 2))


def pack_plainly(trajectories: list[Trajectory], shapes: tuple[RowShape, ...] = SHAPES) -> PackedBatch:
    index = np.arange(1, len(trajectories) + 1, dtype=np.float64)
    advantages = [np.full(len(t.token_ids), i, np.float32) for i, t in zip(index, trajectories, strict=True)]
    return pack(trajectories, advantages, index / 100, shapes)


def unpack(packed: PackedBatch) -> dict[int, list[tuple]]:
    """Reads every place back, one by one: what is predicted from what, by trajectory (its advantage is its number)."""
    batch, found = packed.batch, {}
    for slot in range(batch.mask.shape[0]):
        for row in range(batch.mask.shape[1]):
            for time_ in range(batch.mask.shape[2]):
                at = (slot, row, time_)
                if batch.segment_ids[at] == 0:
                    assert not batch.mask[at]
                    assert batch.weights[at] == 0
                    continue
                segment = batch.segment_ids[slot, row] == batch.segment_ids[at]
                start = int(np.flatnonzero(segment)[0])
                assert segment[start : time_ + 1].all(), "a trajectory's places are next to each other"
                assert batch.positions[at] == time_ - start
                number = round(float(batch.advantages[at]))
                context = tuple(batch.token_ids[slot, row, start : time_ + 1].tolist())
                behaviour, weight = float(batch.behaviour_logprobs[at]), float(batch.weights[at])
                place = (context, int(batch.targets[at]), bool(batch.mask[at]), behaviour, weight)
                found.setdefault(number, []).append(place)
                assert slot < packed.microbatches
    return found


def expected_places(trajectory: Trajectory, number: int) -> list[tuple]:
    places = []
    last = max((i for i in range(len(trajectory.token_ids)) if trajectory.loss_mask[i]), default=0)
    for i in range(1, last + 1):
        trained = bool(trajectory.loss_mask[i])
        places.append(
            (
                tuple(trajectory.token_ids[:i].tolist()),
                int(trajectory.token_ids[i]),
                trained,
                float(trajectory.logprobs[i]) if trained else 0.0,
                float(np.float32(number / 100)) if trained else 0.0,
            )
        )
    return places


def multi_turn(rng: np.random.Generator, lengths: list[tuple[int, bool]]) -> Trajectory:
    """Spans of tokens, sampled or not."""
    mask = np.concatenate([[False], *[np.full(n, sampled) for n, sampled in lengths]]).astype(bool)
    n = len(mask)
    return Trajectory(
        rng.integers(0, 99, n).astype(np.int32),
        mask,
        np.where(mask, -rng.random(n), 0).astype(np.float32),
        np.where(mask, 0, -1).astype(np.int32),
        np.zeros((0, 2), np.int32),
        0.0,
    )


SPANS = st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=4)


@given(st.lists(SPANS, max_size=12), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_every_trained_token_is_there_once_with_its_own_context(spans: list, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trajectories = [multi_turn(rng, lengths) for lengths in spans]
    packed = pack_plainly(trajectories, (RowShape(40, 2, 8), RowShape(24, 4, 4), RowShape(12, 8, 2)))
    found = unpack(packed)
    expected = {n: expected_places(t, n) for n, t in enumerate(trajectories, 1)}
    assert found == {n: places for n, places in expected.items() if places}
    assert packed.trained_tokens == sum(int(t.loss_mask.sum()) for t in trajectories)
    length = packed.batch.mask.shape[2]
    for mask, places in zip(
        packed.batch.mask.reshape(-1, length), np.concatenate(packed.batch.places, dtype=int), strict=True
    ):
        assert places[places < length].tolist() == np.flatnonzero(mask).tolist()


def test_trained_places_have_room_for_the_fullest_row_and_little_more() -> None:
    rng = np.random.default_rng(0)
    for response, room in ((1, 4), (4, 4), (5, 8), (9, 16), (17, 32)):
        packed = pack_plainly([make_trajectory(rng, 25 if response < 8 else 8, response)], SHAPES[:1])
        assert packed.batch.places.shape == (8, 2, room)


def test_what_comes_after_the_last_trained_token_takes_no_place() -> None:
    rng = np.random.default_rng(0)
    packed = pack_plainly([multi_turn(rng, [(2, True), (20, False)])])
    assert int((packed.batch.segment_ids > 0).sum()) == 2


def test_trajectories_without_trained_tokens_take_no_row() -> None:
    rng = np.random.default_rng(0)
    packed = pack_plainly([multi_turn(rng, [(9, False)]), make_trajectory(rng, 1, 0)])
    assert (packed.microbatches, packed.trained_tokens, packed.fill) == (0, 0, 1.0)
    assert pack_plainly([]).microbatches == 0


def test_a_first_token_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match="trains its first token"):
        pack_plainly([make_trajectory(np.random.default_rng(0), 0, 3)])


def test_a_trajectory_that_fits_no_row_is_refused_with_what_to_do() -> None:
    rng = np.random.default_rng(0)
    assert pack_plainly([make_trajectory(rng, 30, 3)]).microbatches == 1
    with pytest.raises(ValueError, match=r"34 tokens, a row holds 33: .*max_tokens_per_row"):
        pack_plainly([make_trajectory(rng, 30, 4)])


@given(st.lists(st.integers(0, 50), max_size=60))
@settings(deadline=None)
def test_best_fit_decreasing_keeps_its_bound(sizes: list[int]) -> None:
    lengths = np.array(sizes, np.int64)
    row, offset, rows = best_fit_decreasing(lengths, 50)
    taken = np.zeros((rows, 50), int)
    for index, size in enumerate(sizes):
        assert (row[index] >= 0) == (size > 0)
        if size:
            taken[row[index], offset[index] : offset[index] + size] += 1
    assert taken.max(initial=0) <= 1
    assert taken.sum() == lengths.sum(), "nothing sticks out of a row"
    # at most one row can be half empty or more, so rows < 2·total/capacity + 1
    assert rows <= 2 * lengths.sum() / 50 + 1


def test_best_fit_decreasing_by_hand() -> None:
    row, offset, rows = best_fit_decreasing(np.array([3, 7, 5, 2, 0, 3]), 10)
    # 7 | 5 | 3 (first) into the fullest row that fits: 7+3 | 3 (second): 5+3 | 2: 5+3+2
    assert (row.tolist(), offset.tolist(), rows) == ([0, 0, 1, 1, -1, 1], [7, 0, 0, 8, 0, 5], 2)


def test_shapes_are_few_and_depend_on_the_config_alone() -> None:
    assert row_shapes(row_tokens=257, rows=8, trajectories=64) == (
        RowShape(256, 8, 8),
        RowShape(128, 16, 4),
        RowShape(64, 32, 2),
    )
    assert row_shapes(row_tokens=10, rows=3, trajectories=7) == (RowShape(16, 3, 3), RowShape(8, 6, 2))
    assert row_shapes(row_tokens=1, rows=1, trajectories=1) == (RowShape(8, 1, 1),)
    lengths = [shape.length for shape in row_shapes(row_tokens=100, rows=2, trajectories=4, sequence_shards=4)]
    assert lengths == [128, 64, 32]


def test_short_trajectories_are_packed_into_short_rows() -> None:
    rng = np.random.default_rng(0)
    short = [make_trajectory(rng, 3, 4) for _ in range(16)]
    assert pack_plainly(short).batch.mask.shape[-1] == 8
    assert pack_plainly([*short[1:], make_trajectory(rng, 20, 9)]).batch.mask.shape[-1] == 32
    # 10 tokens take 9 places: rows of 16 would lose 7 each, rows of 32 lose 5
    assert pack_plainly([make_trajectory(rng, 5, 5) for _ in range(16)]).batch.mask.shape[-1] == 32


def test_more_trajectories_than_the_config_says_double_the_slots() -> None:
    rng = np.random.default_rng(0)
    packed = pack_plainly([make_trajectory(rng, 20, 13) for _ in range(40)])
    assert packed.microbatches == 20
    assert packed.batch.mask.shape == (32, 2, 32)


def test_packing_is_a_pure_function() -> None:
    one, two = (pack_plainly(trajectories_of(make_groups(3))) for _ in range(2))
    for array, same in zip(jax.tree.leaves(one.batch), jax.tree.leaves(two.batch), strict=True):
        np.testing.assert_array_equal(array, same)
        assert array.dtype == same.dtype


def test_the_slots_that_more_sequences_than_trajectories_may_take() -> None:
    """10 trajectories, 4 rows to a microbatch: 3 slots hold 12 rows, 6 hold 24, 12 hold 48."""
    shape = row_shapes(9, 4, 10)[0]
    assert [one.slots for one in grown(shape, 10)] == [one.slots for one in grown(shape, 12)] == [3]
    assert [one.slots for one in grown(shape, 24)] == [3, 6]
    assert [one.slots for one in grown(shape, 25)] == [3, 6, 12]


def test_packing_is_quick() -> None:
    rng = np.random.default_rng(0)
    trajectories = [make_trajectory(rng, 8, int(rng.integers(1, 16))) for _ in range(256)]
    shapes = row_shapes(24, 8, 256)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        pack_plainly(trajectories, shapes)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02


def test_rows_of_a_trajectory_are_packed_like_trajectories_of_their_own() -> None:
    rng = np.random.default_rng(0)
    apart = [make_trajectory(rng, 3, 4), make_trajectory(rng, 2, 6), make_trajectory(rng, 4, 2)]
    arrays = ("token_ids", "loss_mask", "logprobs", "versions")
    columns = {name: np.concatenate([getattr(t, name) for t in apart[:2]]) for name in arrays}
    turns, rows = np.array([[3, 7], [9, 15]], np.int32), np.array([[0, 7], [7, 15]], np.int32)
    joined = [Trajectory(**columns, turns=turns, rows=rows, reward=0.0), apart[2]]
    advantages = [rng.normal(size=len(t.token_ids)).astype(np.float32) for t in apart]
    weights = np.array([0.1, 0.2, 0.3])

    one = pack(joined, [np.concatenate(advantages[:2]), advantages[2]], weights, SHAPES)
    other = pack(apart, advantages, weights, SHAPES)
    np.testing.assert_array_equal(trained_counts(joined), [4, 6, 2])
    for name, array in vars(one.batch).items():
        if name not in ("owners", "turns", "returns", "scores"):
            np.testing.assert_array_equal(array, getattr(other.batch, name))
    told = [(one.batch.owners, one.batch.turns), (other.batch.owners, other.batch.turns)]
    owners_and_turns = [sorted(zip(o[one.batch.mask], t[one.batch.mask], strict=True)) for o, t in told]
    assert owners_and_turns[0] == [(0, 0)] * 4 + [(0, 1)] * 6 + [(1, 0)] * 2
    assert owners_and_turns[1] == [(0, 0)] * 4 + [(1, 0)] * 6 + [(2, 0)] * 2
    assert one.trained_tokens == other.trained_tokens == 12
