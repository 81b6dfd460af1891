"""Sokoban room generator, like gym-sokoban's: a random walk digs the floor, then the game is played backwards.

Played backwards, boxes start on their targets and are pulled away; whatever position is reached so can be solved by
walking the same way forwards. So every room is solvable, in at most ``search_depth`` moves.

Source: M. Schrader, gym-sokoban; T. Weber et al., Imagination-Augmented Agents, 2017, appendix on Sokoban.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

_TURN = 0.35  # how likely the walk turns at a step
_STEPS_PER_SIDE = 1.7  # the walk's steps, per cell of height plus width
_BRUSHES = (  # what a step of the walk digs around itself: (row, column) offsets
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_MAX_TRIES = 100  # of drawing a floor and targets from which every box can be pulled away
_MAX_POSITIONS = 10_000  # a try looks at; only rooms larger than the registered ones come near it


class NoRoomError(RuntimeError):
    """Raised when no room was found; the walls leave too little space for so many boxes."""


@dataclass(frozen=True)
class Room:
    """A Sokoban room; cells are numbered ``row * width + column``, and the outermost are walls.

    ``boxes[i]`` was pulled away from ``targets[i]``.
    """

    height: int
    width: int
    floor: frozenset[int]
    targets: tuple[int, ...]
    boxes: tuple[int, ...]
    player: int


def generate_room(rng: np.random.Generator, height: int, width: int, num_boxes: int, search_depth: int) -> Room:
    """Generates a room in which no box stands on a target, and the player stands on none; decided by ``rng`` alone.

    Raises:
        NoRoomError: where none was found in a set number of tries.
    """
    for _ in range(_MAX_TRIES):
        floor = _dig(rng, height, width)
        free = sorted(floor)
        if len(free) < 2 * num_boxes + 1:
            continue
        player, *targets = (free.pop(int(rng.integers(len(free)))) for _ in range(1 + num_boxes))
        start = Room(height, width, floor, tuple(targets), tuple(targets), player)
        room = _play_backwards(rng, start, search_depth)
        if room is not None:
            return room
    raise NoRoomError(
        f"no {height}x{width} room with {num_boxes} boxes that can be pulled off their targets in {search_depth} "
        f"moves was found in {_MAX_TRIES} tries; use a larger dim_room, fewer num_boxes or a larger search_depth"
    )


def _dig(rng: np.random.Generator, height: int, width: int) -> frozenset[int]:
    """Returns the cells that a random walk with a random brush leaves free."""
    row, column = 1 + int(rng.integers(height - 2)), 1 + int(rng.integers(width - 2))
    down, right = _DIRECTIONS[int(rng.integers(4))]
    floor = set()
    for _ in range(int(_STEPS_PER_SIDE * (height + width))):
        if rng.random() < _TURN:
            down, right = _DIRECTIONS[int(rng.integers(4))]
        row, column = min(max(row + down, 1), height - 2), min(max(column + right, 1), width - 2)
        for more_down, more_right in _BRUSHES[int(rng.integers(len(_BRUSHES)))]:
            r, c = row + more_down, column + more_right
            if 1 <= r <= height - 2 and 1 <= c <= width - 2:
                floor.add(r * width + c)
    return frozenset(floor)


@dataclass(frozen=True)
class _Position:
    """A position of the backward game, the box that was pulled last, and how often that box changed on the way."""

    player: int
    boxes: tuple[int, ...]
    pulled: int | None
    swaps: int


def _play_backwards(rng: np.random.Generator, start: Room, search_depth: int) -> Room | None:
    """Returns a position within ``search_depth`` backward moves in which neither a box nor the
    player is on a target, if any.

    Of these it is one that scores best as gym-sokoban scores: changes of the box being pulled, times how far the boxes
    are from their targets. ``rng`` chooses among equals: the first one found would have the player stand behind a box
    nearly always. Positions are searched in breadth, so that the depth bounds the moves of the shortest solution.
    """
    layer = [_Position(start.player, start.boxes, None, 0)]
    seen = {(start.player, start.boxes)}
    best: list[_Position] = []
    best_score = 1
    for _ in range(search_depth):
        following = []
        for position in layer:
            for after in _backwards(position, start):
                if (after.player, after.boxes) in seen:
                    continue
                seen.add((after.player, after.boxes))
                following.append(after)
                score = _score(after, start)
                if score > best_score:
                    best, best_score = [], score
                if score == best_score:
                    best.append(after)
        layer = following
        if not layer or len(seen) >= _MAX_POSITIONS:
            break
    if not best:
        return None
    chosen = best[int(rng.integers(len(best)))]
    return replace(start, boxes=chosen.boxes, player=chosen.player)


def _backwards(position: _Position, room: Room) -> Iterator[_Position]:
    """Yields the positions that one backward move leads to: a step, or a step that pulls the
    box behind the player along.
    """
    player, boxes = position.player, position.boxes
    for down, right in _DIRECTIONS:
        step = down * room.width + right
        if player + step not in room.floor or player + step in boxes:
            continue
        yield _Position(player + step, boxes, position.pulled, position.swaps)
        if player - step in boxes:
            box = boxes.index(player - step)
            moved = (*boxes[:box], player, *boxes[box + 1 :])
            yield _Position(player + step, moved, box, position.swaps + (box != position.pulled))


def _score(position: _Position, room: Room) -> int:
    if position.player in room.targets or any(box in room.targets for box in position.boxes):
        return 0
    far = sum(_distance(a, b, room.width) for a, b in zip(position.boxes, room.targets, strict=True))
    return position.swaps * far


def _distance(a: int, b: int, width: int) -> int:
    return abs(a // width - b // width) + abs(a % width - b % width)
