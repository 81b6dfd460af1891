"""Scripted agents that read the game's state and solve it by search: the best score that can be reached."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium

from envs import frozen_lake, sokoban
from envs.sokoban_rooms import Room


class FrozenLakeSolver:
    """Walks a shortest way to the goal, found by breadth-first search from the goal.

    On slippery ice it goes on from wherever it slid to, but takes no detour to keep away from holes.
    """

    _game: frozen_lake.FrozenLakeEnv
    _towards_goal: dict[int, int]

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Finds the way to the goal from every cell."""
        game = env.unwrapped
        if not isinstance(game, frozen_lake.FrozenLakeEnv):
            raise TypeError(f"FrozenLakeSolver plays rljax/FrozenLake-v0, not {game}")
        self._game = game
        letters, size = "".join(game.rows), len(game.rows)
        goal = letters.index("G")
        self._towards_goal, waiting = {goal: 0}, deque([goal])
        while waiting:
            row, column = divmod(waiting.popleft(), size)
            # One goes left to (row, column) from the cell on its right, and so on, in the order of the words.
            for action, (r, c) in enumerate(
                ((row, column + 1), (row - 1, column), (row, column - 1), (row + 1, column))
            ):
                cell = r * size + c
                if 0 <= r < size and 0 <= c < size and letters[cell] != "H" and cell not in self._towards_goal:
                    self._towards_goal[cell] = action
                    waiting.append(cell)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Returns the next move of the way."""
        return self._game.words[self._towards_goal[self._game.lake.s]]


class SokobanSolver:
    """Solves a room in the fewest moves, by A* over pushes."""

    _plan: deque[int]

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Finds the solution of the room."""
        game = env.unwrapped
        if not isinstance(game, sokoban.SokobanEnv):
            raise TypeError(f"SokobanSolver plays Sokoban, not {game}")
        plan = solve_sokoban(game.room, game.player, game.boxes)
        if plan is None:
            raise ValueError("this room cannot be solved")  # never one from the generator, seen at its reset
        self._plan = deque(plan)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Returns the next move of the solution."""
        return sokoban.WORDS[self._plan.popleft()]


def solve_sokoban(room: Room, player: int, boxes: frozenset[int]) -> list[int] | None:
    """Finds the fewest moves that put every box on a target, as indices of
    ``sokoban.WORDS``; None where there are none.

    A node is a position just after a push, an edge the walk to the next push and that push, its length their moves. No
    box needs fewer pushes than it would alone in the room to the nearest target: the sum of these is the bound.
    """
    away = _pushes_to_target(room)
    if not boxes <= away.keys():
        return None
    start = (player, boxes)
    least = {start: 0}
    before: dict[tuple[int, frozenset[int]], tuple[tuple[int, frozenset[int]], list[int]]] = {}
    queue = [(0, 0, player, tuple(sorted(boxes)))]
    while queue:
        _, moves, player, cells = heapq.heappop(queue)
        node = (player, frozenset(cells))
        if moves > least[node]:
            continue
        if all(away[box] == 0 for box in cells):
            plan: list[int] = []
            while node != start:
                node, walk = before[node]
                plan[:0] = walk
            return plan
        for walk, after in _pushes(room, *node):
            total = moves + len(walk)
            if all(box in away for box in after[1]) and total < least.get(after, total + 1):
                least[after], before[after] = total, (node, walk)
                bound = total + sum(away[box] for box in after[1])
                heapq.heappush(queue, (bound, total, after[0], tuple(sorted(after[1]))))
    return None


def _pushes_to_target(room: Room) -> dict[int, int]:
    """Returns the fewest pushes to a target from every cell from which a box, alone in
    the room, can be pushed to one.
    """
    away, waiting = dict.fromkeys(room.targets, 0), deque(room.targets)
    while waiting:
        cell = waiting.popleft()
        for step in _steps(room):
            if cell - step in room.floor and cell - 2 * step in room.floor and cell - step not in away:
                away[cell - step] = away[cell] + 1
                waiting.append(cell - step)
    return away


def _pushes(room: Room, player: int, boxes: frozenset[int]) -> Iterator[tuple[list[int], tuple[int, frozenset[int]]]]:
    """Yields every push within the player's reach: the moves up to and with it, and the position after it."""
    walks: dict[int, list[int]] = {player: []}
    waiting = deque([player])
    while waiting:
        cell = waiting.popleft()
        for action, step in enumerate(_steps(room)):
            to = cell + step
            if to in boxes:
                if to + step in room.floor and to + step not in boxes:
                    yield [*walks[cell], action], (to, boxes - {to} | {to + step})
            elif to in room.floor and to not in walks:
                walks[to] = [*walks[cell], action]
                waiting.append(to)


def _steps(room: Room) -> tuple[int, int, int, int]:
    """Returns what each of ``sokoban.WORDS`` adds to the number of a cell."""
    return (-room.width, room.width, -1, 1)
