import contextlib
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.agents import RandomAgent, play
from envs.described import DescribedEnv

envs.register()
TAXI_ID = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)  # gymnasium keeps one of them
LAKE = {
    "env_id": "FrozenLake-v1",
    "env_kwargs": {"is_slippery": False},
    "instruction": "Cross the lake.",
    "actions": ["Left", "Down", "Right", "Up"],
    "success": "reward",
    "threshold": 1,
}
TAXI = {
    "env_id": TAXI_ID,
    "instruction": "Take the passenger to the destination.",
    "actions": ["South", "North", "East", "West", "Pick up", "Drop off"],
    "success": "reward",
    "threshold": 20,
}
POLE = {
    "env_id": "CartPole-v1",
    "instruction": "Keep the pole upright.",
    "actions": ["Left", "Right"],
    "observation": ["position", "velocity", "angle", "turning"],
    "success": "return",
    "threshold": 50,
}


def make(description, **kwargs):
    return gymnasium.make("rljax/Described-v0", **{**description, **kwargs})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("description", [LAKE, TAXI, POLE], ids=lambda one: one["env_id"])
def test_gymnasium_finds_nothing_to_say_about_it(description):
    env = make(description).unwrapped
    check_env(env)
    env.close()


def test_a_lake_is_crossed_as_drawn():
    env = make(LAKE)
    observation, info = env.reset(seed=0)
    assert observation == env.render() == "[red:S]FFF\nFHFH\nFFFH\nHFFG"
    assert info["instruction"] == (
        "Cross the lake. The answer must be one action in a turn.\nYour available actions are:\nLeft, Down, Right, Up"
    )
    observation, reward, terminated, _, info = env.step("up")
    assert observation == "Your last action, Up, changed nothing.\n  (Up)\n[red:S]FFF\nFHFH\nFFFH\nHFFG"
    assert (info["valid"], info["effective"]) == (True, False)
    for word in ("down", " DOWN ", "Right", "right", "Down"):
        observation, reward, terminated, _, info = env.step(word)
        assert (reward, terminated, info["effective"], info["success"]) == (0, False, True, False)
    observation, reward, terminated, _, info = env.step("Right")
    assert (reward, terminated, info["success"]) == (1, True, True)
    assert observation.endswith("HFF[red:G]")


def test_success_is_what_the_description_says():
    env = make(LAKE, success="terminated", threshold=None)
    env.reset(seed=0)
    env.step("Right")
    assert env.step("Down")[-1]["success"]  # into a hole, which ends it
    env = make({**LAKE, "observation": "You are in cell {observation}."}, success="truncated", threshold=None)
    assert env.reset(seed=0)[0] == "You are in cell 0."
    infos = [env.step("Left")[2:] for _ in range(100)]
    assert [info[-1]["success"] for info in infos] == [False] * 99 + [True]
    assert infos[-1][:2] == (False, True)


def test_taxi_is_told_by_its_own_drawing():
    env = make(TAXI)
    observation, _ = env.reset(seed=1)
    assert "\x1b" not in observation
    assert observation.count("[yellow:") == 1
    assert observation.count("[blue:") == 1
    assert observation.count("[magenta:") == 1
    for seed in range(20):
        total, _, _ = play(env, RandomAgent(), seed, max_actions=30)
        assert total < 0
    env.reset(seed=1)
    inner = env.unwrapped._inner.unwrapped
    inner.s = inner.encode(0, 0, 4, 0)  # at the destination with the passenger aboard
    _, reward, terminated, _, info = env.step("drop off")
    assert (reward, terminated, info["success"]) == (20, True, True)


def test_numbers_go_by_names_or_by_a_format():
    env = make(POLE)
    observation, first = env.reset(seed=3)
    values = np.random.default_rng(3).uniform(-0.05, 0.05, 4).astype(np.float32)
    names = POLE["observation"]
    assert observation == ", ".join(f"{name}: {value:.4g}" for name, value in zip(names, values.tolist(), strict=True))
    assert first["state"] == repr(values.tolist())
    formatted = make(POLE, observation="angle {observation[2]:+.3f}")
    assert formatted.reset(seed=3)[0] == f"angle {values[2]:+.3f}"
    total, taken, done, info = 0.0, 0, False, {}
    env.reset(seed=3)
    while not done:  # lean against the fall
        angle = env.unwrapped._observation[2] + env.unwrapped._observation[3]
        _, reward, terminated, truncated, info = env.step("Right" if angle > 0 else "Left")
        total, taken, done = total + reward, taken + 1, terminated or truncated
        assert info["success"] == (total >= 50)
    assert info["success"]
    assert taken >= 50


def test_invalid_actions_pass_no_time():
    env = make(POLE)
    observation, first = env.reset(seed=3)
    for action in ("", "2", "Lef", "up and down"):
        after, reward, terminated, truncated, info = env.step(action)
        assert after == "Your last action was not a valid action.\n" + observation
        assert (reward, terminated, truncated, info["valid"], info["effective"]) == (0, False, False, False, False)
        assert info["state"] == first["state"]


@pytest.mark.parametrize("description", [LAKE, TAXI, POLE], ids=lambda one: one["env_id"])
def test_same_seed_same_episode(description):
    assert [play(make(description), RandomAgent(), seed) for seed in range(5)] == [
        play(make(description), RandomAgent(), seed) for seed in range(5)
    ]


@pytest.mark.parametrize(
    ("kwargs", "error", "line"),
    [
        ({"instruction": ""}, ValueError, "instruction must not be empty"),
        ({"actions": "LDRU"}, TypeError, "actions must be a list of texts, not 'LDRU'"),
        ({"actions": ["Left", "Down"]}, ValueError, "actions holds 2 names, but FrozenLake-v1 has 4 actions"),
        ({"actions": ["Up", "up", "a", "b"]}, ValueError, "actions must hold at least one text, all different"),
        ({"success": "won"}, ValueError, "success must be one of terminated, truncated, reward, return, not 'won'"),
        ({"threshold": None}, TypeError, "threshold must be a number, not None"),
        ({"success": "terminated"}, ValueError, "threshold goes with success=reward or return, not with terminated"),
        ({"observation": "cell"}, ValueError, "observation must hold {observation} or parts of it"),
        ({"observation": "{observation.shape}"}, ValueError, "observation must hold {observation} or parts of it"),
        ({"observation": ["cell"]}, TypeError, "observation as names needs a vector, but FrozenLake-v1 observes"),
        ({"env_kwargs": [1]}, TypeError, "env_kwargs must be a mapping with texts as keys, not [1]"),
        (
            {"env_id": "Pendulum-v1", "env_kwargs": {}, "observation": "{observation}"},
            TypeError,
            "env_id=Pendulum-v1 has the action space Box",
        ),
        ({**POLE, "observation": ["position"]}, ValueError, "observation holds 1 names, but CartPole-v1 observes 4"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(kwargs, error, line):
    arguments = {**LAKE, **kwargs}
    if arguments["env_id"] == "CartPole-v1":
        arguments.pop("env_kwargs")
    with pytest.raises(error) as raised:
        DescribedEnv(**arguments)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*render_mode.*:UserWarning")
def test_an_environment_that_draws_no_text_needs_another_way_to_be_shown():
    with pytest.raises(ValueError, match="CartPole-v1 draws no text; give observation as a format string or as names"):
        DescribedEnv(**{**POLE, "observation": "ansi"})


def test_the_description_on_the_page_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    (snippet,) = (s for s in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Described-v0" in s)
    made: dict[str, Any] = {}
    exec(snippet, made)
    pole = made["custom_envs"]["CartPole"]
    with contextlib.closing(gymnasium.make(pole.id, **pole.kwargs)) as env:
        shown, _ = env.reset(seed=0)
    assert "rotation" in shown
