"""Frozen lake: gymnasium's game, on a random map with a random start and goal, shown as a grid of symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs.toy_text import frozen_lake

from envs import checks
from envs.word_env import WordEnv, rules

SYMBOLS = {
    "P": "player",
    "_": "empty",
    "O": "hole",
    "G": "goal",
    "X": "player in hole",
    "√": "player on goal",
}
WORDS = ("Left", "Down", "Right", "Up")  # in the order of gymnasium's action numbers
_GROUND = {"S": "_", "F": "_", "H": "O", "G": "G"}
_PLAYER = {"S": "P", "F": "P", "H": "X", "G": "√"}
_MAX_TRIES = 100


class FrozenLakeEnv(WordEnv):
    """Frozen lake: reach the goal (reward 1) and enter no hole (0); both end the episode.

    Source: ROLL's FrozenLake (4x4, p 0.8), on gymnasium's ``FrozenLakeEnv``.
    """

    rows: list[str]  # the map, in gymnasium's letters
    lake: frozen_lake.FrozenLakeEnv

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        words: Sequence[str] = WORDS,
        remarks: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Creates the environment.

        ``size`` is the side of the square map, ``p`` how likely a cell is no hole, ``words`` the actions left, down,
        right and up. Without ``remarks`` the observation is the map alone, whatever the last action was. Where
        ``is_slippery``, a move goes as meant with probability 1/3 and to either side with 1/3 each.
        """
        self._size = checks.whole("size", size, 2)
        self._p = checks.number("p", p)
        if not 0 <= self._p <= 1:
            raise ValueError(f"p must be between 0 and 1, not {p}")
        self._slippery = checks.flag("is_slippery", is_slippery)
        game = "You are solving the FrozenLake puzzle. You are the player: avoid the holes and go to the goal."
        if self._slippery:
            game += " The ice is slippery: you may move in a direction that you did not choose."
        words = checks.texts("words", words)
        if len(words) != len(WORDS):
            raise ValueError(f"words must be four, for left, down, right and up, not {len(words)}")
        super().__init__(rules(game, words, SYMBOLS), words, render_mode, remarks=remarks)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.rows = random_map(self.np_random, self._size, self._p)
        self.lake = frozen_lake.FrozenLakeEnv(desc=self.rows, is_slippery=self._slippery)
        self.lake.reset(seed=int(self.np_random.integers(2**31)))

    def _act(self, index: int) -> tuple[float, bool, bool]:
        _, reward, terminated, truncated, _ = self.lake.step(index)
        return float(reward), terminated, truncated

    def _picture(self) -> str:
        cells = [
            (_PLAYER if number == self.lake.s else _GROUND)[letter] for number, letter in enumerate("".join(self.rows))
        ]
        return "\n".join("".join(cells[at : at + self._size]) for at in range(0, len(cells), self._size))

    def _solved(self) -> bool:
        return "".join(self.rows)[self.lake.s] == "G"


def random_map(rng: np.random.Generator, size: int, p: float) -> list[str]:
    """Draws a map in gymnasium's letters, its start and goal anywhere, the goal reachable from the start.

    Holes, start and goal are drawn anew until there is a way. gymnasium's own generator fixes start and goal in the
    corners. Where the ice is so thin that no try had a way, one along a row and a column is frozen over.
    """
    for _ in range(_MAX_TRIES):
        letters = np.where(rng.random((size, size)) < p, "F", "H")
        start = int(rng.integers(size * size))
        goal = int(rng.integers(size * size - 1))
        goal += goal >= start  # any cell but the start, each as likely
        letters.flat[start], letters.flat[goal] = "S", "G"
        if _connected(letters, start, goal):
            break
    else:
        (row, column), (last_row, last_column) = divmod(start, size), divmod(goal, size)
        letters[row, min(column, last_column) : max(column, last_column) + 1] = "F"
        letters[min(row, last_row) : max(row, last_row) + 1, last_column] = "F"
        letters.flat[start], letters.flat[goal] = "S", "G"
    return ["".join(row) for row in letters]


def _connected(letters: np.ndarray, start: int, goal: int) -> bool:
    size = len(letters)
    seen, waiting = {start}, [start]
    while waiting:
        row, column = divmod(waiting.pop(), size)
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= r < size and 0 <= c < size and letters[r, c] != "H" and r * size + c not in seen:
                seen.add(r * size + c)
                waiting.append(r * size + c)
    return goal in seen
