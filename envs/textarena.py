"""Adapter of TextArena's games to text environments: alone, or against others played by a script.

Source: L. Guertler et al., TextArena, 2025; the extra ``textarena`` installs it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from envs import checks
from envs.canonical import canonical
from envs.text_env import Info, TextEnv

Opponent = Callable[[Sequence[str], np.random.Generator], str]  # (messages since its last turn, its dice) -> its action

_ONE_AT_A_TIME = threading.Lock()
_NO_LIMIT = 2**31
_MAX_OPENINGS = 100  # a game that others win before the player's first turn is begun anew
_MAX_OPPONENT_TURNS = 1_000  # in a row; a game in which nobody else gets a turn again is broken


class TextArenaEnv(TextEnv):
    """Plays as ``player`` in a TextArena game; its reward is TextArena's, given at the end.

    The game's prompt is the instruction, what it says since the player's last turn the observation. Actions are free
    text as the prompt asks for; the wrappers that TextArena registers a game with read them (most add brackets where
    none are). TextArena ends a game at the second invalid action in a row; here it goes on, as in every environment.

    TextArena draws from Python's and numpy's global generators. Each environment lends it states of its own, one
    environment at a time, and puts back what was there. A game that draws from a set of strings depends on
    PYTHONHASHSEED all the same.
    """

    def __init__(
        self,
        game: str,
        num_players: int = 1,
        player: int = 0,
        opponent: Sequence[str] | Opponent | None = None,
        success_reward: float = 1.0,
        game_kwargs: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes the game.

        Args:
            game: the id that TextArena registers it by, such as "GuessTheNumber-v0".
            num_players: of the game; the others are played by ``opponent``.
            player: index of the player played here, from 0.
            opponent: a function of the messages since its last turn and of a random generator, or the actions that it
                takes at random: of these the ones named in the latest message, or any where none is.
            success_reward: the task is solved where the final reward is at least this.
            game_kwargs: what the game is made with.
            render_mode: None or "ansi".

        Raises:
            ImportError: where TextArena is not installed.
            TypeError, ValueError: where an argument is wrong.
        """
        super().__init__(render_mode)
        self._num_players = checks.whole("num_players", num_players, 1)
        self._player = checks.whole("player", player, 0)
        if player >= num_players:
            raise ValueError(f"player={player} is not in a game of {num_players}; players count from 0")
        if (opponent is None) != (num_players == 1):
            raise ValueError("opponent must be given where num_players is above 1, and only there")
        self._opponent: Opponent | None = None
        if opponent is not None:
            self._opponent = opponent if callable(opponent) else _random_opponent(checks.texts("opponent", opponent))
        self._success_reward = checks.number("success_reward", success_reward)
        self._game, self._bare = _make(checks.text("game", game), checks.options("game_kwargs", game_kwargs))
        self._over = True
        self._shown = ""
        self._solved = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begins an episode; where another player moves first, up to the player's first turn."""
        super().reset(seed=seed)
        for _ in range(_MAX_OPENINGS):
            self._open(int(self.np_random.integers(2**31)))
            if not self._over:
                break
        else:
            raise RuntimeError(f"{self._bare.env_id} was over before player {self._player} had a turn")
        prompts, messages = self._new_messages()
        self._solved = False
        self._shown = _joined(messages)
        return self._shown, {"instruction": _joined(prompts), **self._info()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Takes one action and lets the others answer.

        Raises:
            gymnasium.error.ResetNeeded: when no episode is going on.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("no episode is going on; call reset first")
        game = self._bare.state
        before, errors = canonical(game.game_state), getattr(game, "error_count", 0)
        with self._own_generators():
            game.error_allowance = _NO_LIMIT
            self._over, _ = self._game.step(action)
            valid = getattr(game, "error_count", 0) <= errors and not game.game_info[self._player].get("invalid_move")
            effective = canonical(game.game_state) != before
            self._others_play()
        reward = 0.0
        if self._over:
            rewards, endings = self._bare.close()
            reward = float((rewards or {}).get(self._player, 0.0))
            self._solved = reward >= self._success_reward
            why = str(endings[self._player].get("reason") or "The game is over.")
        self._shown = _joined(self._new_messages()[1] + ([why] if self._over else []))
        info = {**self._info(), "valid": valid, "effective": effective, "success": self._solved}
        return self._shown, reward, self._over, False, info

    def render(self) -> str:
        """Returns what the player was shown last, in every render mode."""
        return self._shown

    def _open(self, seed: int) -> None:
        """Begins a game and plays it up to the player's first turn, or to its end where others end it before."""
        self._generators = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self._over = False
        with self._own_generators():
            self._game.reset(num_players=self._num_players, seed=seed)
            self._allowance = getattr(self._bare.state, "error_allowance", 0)
            self._others_play()

    def _info(self) -> Info:
        return {"actions": ("<text>",), "suffix": "", "state": canonical(self._bare.state.game_state)}

    def _others_play(self) -> None:
        """Plays the other players until it is the player's turn or the game is over."""
        game = self._bare.state
        turns = 0
        while not self._over and game.current_player_id != self._player:
            if turns == _MAX_OPPONENT_TURNS or self._opponent is None:
                raise RuntimeError(f"{self._bare.env_id} gave player {self._player} no turn in {turns} turns of others")
            _, messages = self._bare.get_observation()
            game.error_allowance = self._allowance
            self._over, _ = self._game.step(self._opponent([said for _, said, _ in messages], self.np_random))
            turns += 1

    def _new_messages(self) -> tuple[list[str], list[str]]:
        """Returns the prompts and the other messages to the player since the last call, its own actions left out."""
        observations = self._bare.state.observations
        messages, observations[self._player] = observations[self._player], []
        prompts = [text for _, text, kind in messages if kind.name == "PROMPT"]
        others = [text for sender, text, kind in messages if kind.name != "PROMPT" and sender != self._player]
        return prompts, others

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        with _ONE_AT_A_TIME:
            outside = random.getstate(), np.random.get_state()
            random.setstate(self._generators[0])
            np.random.set_state(self._generators[1])
            try:
                yield
            finally:
                self._generators = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])


def _make(game: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Makes the game; returns it as TextArena wraps it, and bare."""
    try:
        import textarena
    except ImportError as error:
        raise ImportError(f"TextArena cannot be imported ({error}); rljax's extra textarena installs it") from error
    made = textarena.make(game, **options)
    bare = made
    while isinstance(bare, textarena.Wrapper):
        bare = bare.env
    return made, bare


def _random_opponent(actions: tuple[str, ...]) -> Opponent:
    def act(messages: Sequence[str], rng: np.random.Generator) -> str:
        named = [action for action in actions if messages and action in messages[-1]] or actions
        return named[int(rng.integers(len(named)))]

    return act


def _joined(messages: Sequence[str]) -> str:
    return "\n".join(message.strip("\n") for message in messages)
