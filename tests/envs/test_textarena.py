"""The adapter against a stand-in of the package (it and its dependencies need not be installed), and the real one."""

import random
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.agents import RandomAgent, play
from tests.envs import fake_textarena

envs.register()
NUMBERS = tuple(f"[{n}]" for n in range(10))


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", fake_textarena)


def make(**kwargs):
    return gymnasium.make("rljax/TextArena-v0", **{"game": "Guess-v0", **kwargs})


def secret(env):
    return env.unwrapped._bare.state.game_state["secret"]


@pytest.mark.usefixtures("fake")
@pytest.mark.filterwarnings("error")
def test_gymnasium_finds_nothing_to_say_about_it():
    check_env(make().unwrapped)
    check_env(make(num_players=2, player=1, opponent=NUMBERS).unwrapped)


@pytest.mark.usefixtures("fake")
def test_the_prompt_is_the_instruction_and_what_is_new_the_observation():
    env = make()
    observation, info = env.reset(seed=3)
    assert info["instruction"] == "You are Player 0. Guess a number, such as [3]."
    assert observation == env.render() == "Untried: " + " ".join(NUMBERS)
    assert info["actions"] == ("<text>",)
    wrong = f"[{(secret(env) + 1) % 10}]"
    observation, reward, terminated, _, info = env.step(wrong[1])  # the wrapper adds the brackets
    assert wrong not in observation
    assert observation.count("Untried") == 1
    assert (reward, terminated, info["valid"], info["effective"], info["success"]) == (0, False, True, True, False)
    observation, reward, terminated, _, info = env.step(f"[{secret(env)}]")
    assert (reward, terminated, info["success"]) == (1, True, True)
    assert observation.endswith("Player 0 found it.")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("[1]")


@pytest.mark.usefixtures("fake")
def test_invalid_actions_never_end_the_game():
    env = make()
    _, before = env.reset(seed=3)
    for action in ["", "x", "[]", "four", "[12]"] * 3:
        observation, reward, terminated, _, info = env.step(action)
        assert observation == "You attempted an invalid move."
        assert (reward, terminated, info["valid"], info["effective"]) == (0, False, False, False)
        assert info["state"] == before["state"]


@pytest.mark.usefixtures("fake")
def test_the_seed_alone_decides_and_global_generators_are_left_alone():
    env, other = make(game_kwargs={"turns": 20}), make(game_kwargs={"turns": 20})
    episodes = []
    for used in (env, other, env):
        random.seed(len(episodes))
        outside = random.getstate(), np.random.get_state()[1].tolist()
        trace = [used.reset(seed=5)]
        for word in "0123456789":
            if not used.unwrapped._over:
                other.reset(seed=1) if used is env else None  # an environment beside it
                trace.append(used.step(word))
        episodes.append(trace)
        assert outside == (random.getstate(), np.random.get_state()[1].tolist())
    assert episodes[0] == episodes[1] == episodes[2]
    assert len({secret(env) for seed in range(20) if env.reset(seed=seed)}) > 3


@pytest.mark.usefixtures("fake")
def test_another_seat_is_played_by_random_actions_that_the_game_names():
    env = make(num_players=2, player=1, opponent=NUMBERS, game_kwargs={"turns": 10})
    outcomes = set()
    for seed in range(30):
        first, info = env.reset(seed=seed)
        assert info["instruction"].startswith("You are Player 1")
        assert "[" in first
        total, success, taken = play(env, RandomAgent(NUMBERS), seed)
        assert success == (total == 1)
        assert (total, success, taken) == play(env, RandomAgent(NUMBERS), seed)
        outcomes.add(total)
        assert not env.unwrapped._bare.state.game_info[0]["invalid_move"]
    assert outcomes >= {1, -1}


@pytest.mark.usefixtures("fake")
def test_an_opponent_may_be_a_function_and_loses_by_its_own_mistakes():
    seen = []

    def opponent(messages, rng):
        seen.append(tuple(messages))
        return "nonsense"

    env = make(num_players=2, player=0, opponent=opponent)
    env.reset(seed=3)
    observation, reward, terminated, _, info = env.step(f"[{(secret(env) + 1) % 10}]")
    assert (reward, terminated, info["valid"], info["success"]) == (1, True, True, True)
    assert "Invalid Move" in observation
    assert len(seen) == 2
    assert "You attempted an invalid move." in seen[1]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("kwargs", "error", "line"),
    [
        ({"game": 3}, TypeError, "game must be a text, not 3"),
        ({"num_players": 0}, ValueError, "num_players must be at least 1, not 0"),
        ({"num_players": 2}, ValueError, "opponent must be given where num_players is above 1, and only there"),
        ({"opponent": NUMBERS}, ValueError, "opponent must be given where num_players is above 1, and only there"),
        ({"num_players": 2, "opponent": "[1]"}, TypeError, "opponent must be a list of texts, not '[1]'"),
        ({"player": 1}, ValueError, "player=1 is not in a game of 1; players count from 0"),
        ({"success_reward": "1"}, TypeError, "success_reward must be a number, not '1'"),
        ({"game": "Nothing-v0"}, ValueError, "Environment Nothing-v0 not found in registry."),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(kwargs, error, line):
    with pytest.raises(error) as raised:
        make(**kwargs)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ImportError, match=r"TextArena cannot be imported .* rljax's extra textarena installs it"):
        make()


def test_games_of_the_real_package():
    pytest.importorskip("textarena", exc_type=ImportError)
    env = gymnasium.make("rljax/TextArena-v0", game="GuessTheNumber-v0")
    guesses = RandomAgent([f"[{n}]" for n in range(1, 21)])
    results = [play(env, guesses, seed) for seed in range(10)]
    assert results == [play(env, guesses, seed) for seed in range(10)]
    assert 0 < sum(success for _, success, _ in results) < 10
    env = gymnasium.make(
        "rljax/TextArena-v0", game="TicTacToe-v0", num_players=2, player=1, opponent=[f"[{n}]" for n in range(9)]
    )
    results = [play(env, RandomAgent([f"[{n}]" for n in range(9)]), seed) for seed in range(10)]
    assert {total for total, _, _ in results} <= {-1, 0, 1}
