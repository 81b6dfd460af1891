import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.agents import RandomAgent, play, scripted_agent
from envs.frozen_lake import WORDS, FrozenLakeEnv, random_map

envs.register()


def make(**kwargs):
    return gymnasium.make("rljax/FrozenLake-v0", **kwargs)


def put(env, *rows):
    """Sets the game on a map of one's own."""
    env.reset(seed=0)
    game = env.unwrapped
    game.rows = list(rows)
    game.lake = type(game.lake)(desc=game.rows, is_slippery=False)
    game.lake.reset(seed=0)
    return env


def test_the_instruction_tells_the_rules():
    _, info = make().reset(seed=0)
    assert info["instruction"] == (
        "You are solving the FrozenLake puzzle. You are the player: avoid the holes and go to the goal. "
        "The answer must be one action in a turn.\n"
        "The meaning of each symbol in the state is:\n"
        "P: player, _: empty, O: hole, G: goal, X: player in hole, √: player on goal\n"
        "Your available actions are:\nLeft, Down, Right, Up"
    )
    assert info["actions"] == WORDS
    assert info["suffix"] == ""
    assert "slippery" in make(is_slippery=True).reset(seed=0)[1]["instruction"]


def test_the_goal_gives_one_and_ends():
    env = put(make(size=2), "SF", "HG")
    observation, reward, terminated, truncated, info = env.step("RIGHT ")
    assert (observation, reward, terminated, truncated) == ("_P\nOG", 0, False, False)
    assert (info["valid"], info["effective"], info["success"], info["state"]) == (True, True, False, "_P\nOG")
    observation, reward, terminated, truncated, info = env.step("down")
    assert (observation, reward, terminated, truncated) == ("__\nO√", 1, True, False)
    assert info["success"]
    assert env.render() == "__\nO√"
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode is going on; call reset first"):
        env.unwrapped.step("Up")


def test_a_hole_gives_nothing_and_ends():
    observation, reward, terminated, truncated, info = put(make(size=2), "SF", "HG").step("Down")
    assert (observation, reward, terminated, truncated, info["success"]) == ("__\nXG", 0, True, False, False)


def test_what_does_nothing_is_said_and_costs_nothing():
    env = put(make(size=2), "SF", "HG")
    observation, reward, terminated, _, info = env.step("Up")
    assert (observation, reward, terminated) == ("Your last action, Up, changed nothing.\nP_\nOG", 0, False)
    assert (info["valid"], info["effective"]) == (True, False)
    for action in ("", "Jump", "<answer>Left</answer>", "Left Right", "\x00" * 1000, "√"):
        observation, reward, terminated, _, info = env.step(action)
        assert (observation, reward, terminated) == ("Your last action was not a valid action.\nP_\nOG", 0, False)
        assert (info["valid"], info["effective"], info["success"]) == (False, False, False)


def test_on_slippery_ice_a_move_goes_astray_as_the_seed_says():
    env = make(is_slippery=True, size=8, p=1.0)

    def states(seed):
        states = [env.reset(seed=seed)[0]]
        while len(states) < 40 and not env.unwrapped._over:
            states.append(env.step("Down")[-1]["state"])
        return states

    columns = {state.find("P") % 9 for state in states(1) if "P" in state}
    assert len(columns) > 1
    assert states(1) == states(1)
    assert states(1) != states(2)


def test_the_solver_takes_a_shortest_way_from_every_start():
    env = make()
    lengths = []
    for seed in range(300):
        total, success, taken = play(env, scripted_agent("rljax/FrozenLake-v0"), seed)
        assert (total, success) == (1, True)
        lengths.append(taken)
    assert 1 <= min(lengths) < max(lengths) <= 10
    env = put(make(size=4), "SHFF", "FHFF", "FHFG", "FFFH")
    agent = scripted_agent("rljax/FrozenLake-v0")
    agent.begin(env, 0)
    taken, over = [], False
    while not over:
        taken.append(agent.act("", {}))
        _, _, over, _, _ = env.step(taken[-1])
    assert taken == ["Down", "Down", "Down", "Right", "Right", "Up", "Right"]


def test_a_thousand_maps_have_a_way():
    env = make(size=4, p=0.8)
    agent = scripted_agent("rljax/FrozenLake-v0")
    assert all(play(env, agent, seed)[1] for seed in range(1000))


def test_chance_does_far_worse():
    env = make()
    assert sum(play(env, RandomAgent(), seed, max_actions=10)[1] for seed in range(300)) < 100


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**63), size=st.integers(2, 9), p=st.floats(0, 1))
def test_there_is_a_way_on_every_map(seed, size, p):
    rows = random_map(np.random.default_rng(seed), size, p)
    letters = "".join(rows)
    assert [len(row) for row in rows] == [size] * size
    assert (letters.count("S"), letters.count("G")) == (1, 1)
    assert set(letters) <= set("SGFH")
    env = make(size=size, p=p)
    _, success, taken = play(env, scripted_agent("rljax/FrozenLake-v0"), seed)
    assert success
    assert taken <= size * size


def test_starts_goals_and_holes_are_everywhere():
    rng = np.random.default_rng(0)
    maps = np.array([list("".join(random_map(rng, 4, 0.8))) for _ in range(4000)])
    for letter, share in (("S", 1 / 16), ("G", 1 / 16)):
        assert np.abs((maps == letter).mean(axis=0) - share).max() < 0.03  # corners are reached from fewer sides
    assert 0.1 < (maps == "H").mean() < 0.2


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), actions=st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=40))
def test_whatever_is_done_the_map_stays_and_there_is_one_player(seed, actions):
    env = make()
    observation, _ = env.reset(seed=seed)
    ground = observation.replace("P", "_")
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        state = info["state"]
        assert sum(map(state.count, "PX√")) == 1
        assert state.replace("P", "_").replace("X", "O").replace("√", "G") == ground
        assert (reward == 1) == info["success"] == ("√" in state)
        assert terminated == ("X" in state or "√" in state)
        assert not truncated
        if terminated:
            break


@pytest.mark.parametrize(
    ("kwargs", "error", "line"),
    [
        ({"size": "4"}, TypeError, "size must be a whole number, not '4'"),
        ({"size": True}, TypeError, "size must be a whole number, not True"),
        ({"size": 1}, ValueError, "size must be at least 2, not 1"),
        ({"p": "0.8"}, TypeError, "p must be a number, not '0.8'"),
        ({"p": 1.5}, ValueError, "p must be between 0 and 1, not 1.5"),
        ({"is_slippery": 1}, TypeError, "is_slippery must be True or False, not 1"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(kwargs, error, line):
    with pytest.raises(error) as raised:
        FrozenLakeEnv(**kwargs)
    assert str(raised.value) == line
