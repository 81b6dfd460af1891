"""A stand-in for TextArena 0.7: as much of it as the adapter touches, with one game of one player and one of two.

Names and behaviour follow its core.py and state.py; the games draw from the global generator, as its own do.
"""

import enum
import random
from types import SimpleNamespace


class ObservationType(enum.Enum):
    PROMPT = 1
    PLAYER_ACTION = 2
    GAME_MESSAGE = 5
    GAME_ADMIN = 6


class Game:
    """Guess a number below ten, ``[n]``, in turns where there are two; three wrong guesses of all end it."""

    def __init__(self, turns: int = 3):
        self.turns = turns

    def reset(self, num_players, seed=None):
        random.seed(seed)
        self.state = SimpleNamespace(
            observations={seat: [] for seat in range(num_players)},
            current_player_id=0,
            error_allowance=1,
            error_count=0,
            game_state={"secret": random.randrange(10), "tried": set(), "luck": []},
            game_info={seat: {"invalid_move": False} for seat in range(num_players)},
            rewards=None,
            done=False,
        )
        for seat in range(num_players):
            self._tell(seat, -1, f"You are Player {seat}. Guess a number, such as [3].", ObservationType.PROMPT)
        self._tell_all("Untried: " + " ".join(f"[{n}]" for n in range(10)))

    def _tell(self, seat, sender, text, kind):
        self.state.observations[seat].append((sender, text, kind))

    def _tell_all(self, text, kind=ObservationType.GAME_MESSAGE, sender=-1):
        for seat in self.state.observations:
            self._tell(seat, sender, text, kind)

    def step(self, action):
        state, mover = self.state, self.state.current_player_id
        self._tell_all(action, ObservationType.PLAYER_ACTION, mover)
        game = state.game_state
        if len(action) != 3 or not action[1].isdigit():
            state.error_count += 1
            self._tell(mover, -1, "You attempted an invalid move.", ObservationType.GAME_ADMIN)
            if state.error_count > state.error_allowance:
                state.game_info[mover]["invalid_move"] = True
                self._end({seat: -1 if seat == mover else 1 for seat in state.observations}, "Invalid Move")
            return state.done, {}
        state.error_count = 0
        game["tried"].add(int(action[1]))
        game["luck"].append(random.randrange(100))
        self._tell_all("Untried: " + " ".join(f"[{n}]" for n in range(10) if n not in game["tried"]))
        if int(action[1]) == game["secret"]:
            self._end({seat: 1 if seat == mover else -1 for seat in state.observations}, f"Player {mover} found it.")
        elif len(game["luck"]) == self.turns:
            self._end(dict.fromkeys(state.observations, 0), "Nobody found it.")
        state.current_player_id = (mover + 1) % len(state.observations)
        return state.done, {}

    def _end(self, rewards, reason):
        self.state.done, self.state.rewards = True, rewards
        for info in self.state.game_info.values():
            info["reason"] = reason

    def get_observation(self):
        seat = self.state.current_player_id
        messages, self.state.observations[seat] = self.state.observations[seat], []
        return seat, messages

    def close(self):
        return self.state.rewards, self.state.game_info


class Wrapper:
    """Adds brackets where there are none, and would keep the whole history, did one ask it for observations."""

    def __init__(self, env):
        self.env = env

    def reset(self, num_players, seed=None):
        return self.env.reset(num_players=num_players, seed=seed)

    def step(self, action):
        return self.env.step(action=action if "[" in action else f"[{action}]")

    def get_observation(self):
        raise AssertionError("the adapter keeps no history of its own")


def make(env_id, **options):
    if env_id != "Guess-v0":
        raise ValueError(f"Environment {env_id} not found in registry.")
    game = Game(**options)
    game.env_id = env_id
    return Wrapper(game)
