import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sokoban_rooms import NoRoomError, generate_room


def fewest_moves(room):
    """By brute force, in breadth over single moves."""
    start = (room.player, frozenset(room.boxes))
    waiting, seen = deque([(start, 0)]), {start}
    while waiting:
        (player, boxes), moves = waiting.popleft()
        if boxes == frozenset(room.targets):
            return moves
        for step in (1, -1, room.width, -room.width):
            to, after = player + step, boxes
            if to in boxes:
                after = boxes - {to} | {to + step}
            if {to, *after} <= room.floor and len(after) == len(boxes) and (to, after) not in seen:
                seen.add((to, after))
                waiting.append(((to, after), moves + 1))
    return None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    height=st.integers(5, 8),
    width=st.integers(5, 8),
    num_boxes=st.integers(1, 2),
    search_depth=st.integers(8, 60),
)
def test_every_room_is_whole_and_solvable_within_the_depth(seed, height, width, num_boxes, search_depth):
    room = generate_room(np.random.default_rng(seed), height, width, num_boxes, search_depth)
    inside = {row * width + column for row in range(1, height - 1) for column in range(1, width - 1)}
    assert room.floor <= inside
    assert len({*room.targets, *room.boxes, room.player}) == 2 * num_boxes + 1
    assert {*room.targets, *room.boxes, room.player} <= room.floor
    moves = fewest_moves(room)
    assert moves is not None
    assert 1 <= moves <= search_depth


def test_rooms_come_from_their_generator_alone():
    def rooms():
        return [generate_room(np.random.default_rng(seed), 10, 10, 2, 10) for seed in range(20)]

    random.seed(1)
    first, outside = rooms(), random.getstate()
    np.random.seed(2)
    random.seed(1)
    assert rooms() == first
    assert random.getstate() == outside
    assert len(set(first)) == 20


def test_where_there_is_no_room_it_says_what_to_change():
    with pytest.raises(NoRoomError, match=r"no 6x6 room with 3 boxes .* use a larger dim_room, fewer num_boxes or"):
        generate_room(np.random.default_rng(0), 6, 6, 3, 2)  # three boxes need a pull each
