"""Sokoban: push every box onto a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs import checks
from envs.sokoban_rooms import Room, generate_room
from envs.word_env import WordEnv, rules

SYMBOLS = {
    "#": "wall",
    "_": "empty",
    "O": "target",
    "√": "box on target",
    "X": "box",
    "P": "player",
    "S": "player on target",
}
WORDS = ("Up", "Down", "Left", "Right")
_STEP, _BOX_ON, _ALL_ON = -0.1, 1.0, 10.0
_GAME = (
    "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets. "
    "When you are right next to a box, you can push it by moving in the same direction. "
    "You cannot push a box through a wall or another box, and you cannot pull a box."
)


class SokobanEnv(WordEnv):
    """Sokoban with rewards -0.1 a step, invalid ones too; 1 for a box pushed onto a target, -1 off it; 10 when all
    are on, which ends the episode.

    So one box solved in k steps gives 11 - 0.1 k. Source: ROLL's Sokoban, on gym-sokoban.
    """

    invalid_reward = _STEP
    room: Room  # as it was at the reset
    player: int  # as it is now, in the room's numbers of cells
    boxes: frozenset[int]

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        search_depth: int = 300,
        grid_vocab: Mapping[str, str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Creates the environment. A room is solvable in at most ``search_depth`` moves; see `envs.sokoban_rooms`.

        Args:
            dim_room: height and width, walls included, 4 at least.
            num_boxes: as many as targets.
            search_depth: how many moves the room is played backwards at most.
            grid_vocab: a character for each of the meanings of ``SYMBOLS``, written as there.
            render_mode: None or "ansi".
        """
        if not isinstance(dim_room, list | tuple) or len(dim_room) != 2:
            raise TypeError(f"dim_room must be a height and a width, not {dim_room!r}")
        self._height, self._width = (checks.whole("dim_room", side, 4) for side in dim_room)
        self._num_boxes = checks.whole("num_boxes", num_boxes, 1)
        if (self._height - 2) * (self._width - 2) < 2 * num_boxes + 1:
            raise ValueError(
                f"num_boxes={num_boxes} boxes, their targets and the player do not fit into dim_room={tuple(dim_room)}"
            )
        self._search_depth = checks.whole("search_depth", search_depth, 1)
        symbols = SYMBOLS if grid_vocab is None else _checked_vocabulary(grid_vocab)
        self._symbol = {meaning: symbol for symbol, meaning in symbols.items()}
        super().__init__(rules(_GAME, WORDS, symbols), WORDS, render_mode)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.room = generate_room(self.np_random, self._height, self._width, self._num_boxes, self._search_depth)
        self.player, self.boxes = self.room.player, frozenset(self.room.boxes)

    def _act(self, index: int) -> tuple[float, bool, bool]:
        step = (-self._width, self._width, -1, 1)[index]
        before = self._on_target()
        to = self.player + step
        if to in self.boxes and self._is_free(to + step):
            self.boxes = self.boxes - {to} | {to + step}
        if self._is_free(to):
            self.player = to
        reward = _STEP + _BOX_ON * (self._on_target() - before) + _ALL_ON * self._solved()
        return reward, self._solved(), False

    def _is_free(self, cell: int) -> bool:
        return cell in self.room.floor and cell not in self.boxes

    def _on_target(self) -> int:
        return len(self.boxes & set(self.room.targets))

    def _solved(self) -> bool:
        return self._on_target() == len(self.boxes)

    def _picture(self) -> str:
        cells = [self._symbol[self._at(cell)] for cell in range(self._height * self._width)]
        return "\n".join("".join(cells[at : at + self._width]) for at in range(0, len(cells), self._width))

    def _at(self, cell: int) -> str:
        target = cell in self.room.targets
        if cell == self.player:
            return "player on target" if target else "player"
        if cell in self.boxes:
            return "box on target" if target else "box"
        if target:
            return "target"
        return "empty" if cell in self.room.floor else "wall"


def _checked_vocabulary(given: Any) -> dict[str, str]:
    symbols = checks.options("grid_vocab", given)
    wrong = [symbol for symbol in symbols if len(symbol) != 1 or symbol.isspace()]
    if wrong or len(symbols) != len(SYMBOLS) or set(symbols.values()) != set(SYMBOLS.values()):
        raise ValueError(
            f"grid_vocab must give one character for each of {', '.join(SYMBOLS.values())}, not {symbols!r}"
        )
    return symbols
