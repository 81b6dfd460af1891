"""Ids, entry points, and what gymnasium's checker says of every environment that can be made from its id alone."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.agents import SCRIPTED, RandomAgent, play, scripted_agent

envs.register()
ROOT = Path(envs.__file__).parents[1]
IDS = [
    "rljax/FrozenLake-v0",
    "rljax/SimpleSokoban-v0",
    "rljax/LargerSokoban-v0",
    "rljax/SokobanDifferentGridVocab-v0",
]

# The whole text of some first observations: what they are may change with no machine, process or release of numpy.
GOLDEN = {
    ("rljax/FrozenLake-v0", 0): "_P__\nOO__\n_OO_\nOG__",
    ("rljax/FrozenLake-v0", 1): "____\n__OP\n____\nG___",
    ("rljax/FrozenLake-v0", 2): "__O_\n____\n____\n__PG",
    ("rljax/SimpleSokoban-v0", 0): "######\n######\n######\n###_##\n##OXP#\n######",
    ("rljax/SimpleSokoban-v0", 1): "######\n#O___#\n#_PX_#\n#___##\n######\n######",
    ("rljax/SimpleSokoban-v0", 2): "######\n##___#\n##X_##\n##OP##\n##___#\n######",
    ("rljax/LargerSokoban-v0", 0): (
        "##########\n#_O_X__O_#\n#_X_____##\n#_P_##___#\n##_###__##\n"
        "######__##\n##########\n##########\n##########\n##########"
    ),
    ("rljax/LargerSokoban-v0", 1): (
        "##########\n##_______#\n#__X___O_#\n#PXO######\n#_____####\n"
        "#____#####\n##########\n##########\n##########\n##########"
    ),
    ("rljax/SokobanDifferentGridVocab-v0", 0): "WWWWWW\nWWWWWW\nWWWWWW\nWWW.WW\nWWGBAW\nWWWWWW",
    ("rljax/SokobanDifferentGridVocab-v0", 1): "WWWWWW\nWG...W\nW.AB.W\nW...WW\nWWWWWW\nWWWWWW",
}


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.filterwarnings("error")
def test_gymnasium_finds_nothing_to_say_about_it(env_id):
    check_env(gymnasium.make(env_id).unwrapped)
    play(gymnasium.make(env_id, render_mode="ansi"), RandomAgent(), 0)  # the passive checker watches


@pytest.mark.parametrize(("env_id", "seed"), GOLDEN)
def test_first_observations_are_what_they_were(env_id, seed):
    assert gymnasium.make(env_id).reset(seed=seed)[0] == GOLDEN[env_id, seed]


@pytest.mark.parametrize("hash_seed", ["1", "77"])
def test_first_observations_are_the_same_in_another_process(hash_seed):
    script = (
        "import gymnasium, envs; envs.register()\n"
        f"for name, seed in {list(GOLDEN)!r}: print(repr(gymnasium.make(name).reset(seed=seed)[0]))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [repr(text) for text in GOLDEN.values()]


@pytest.mark.parametrize("env_id", IDS)
def test_the_seed_decides_the_first_observation(env_id):
    env, other = gymnasium.make(env_id), gymnasium.make(env_id)
    first = [env.reset(seed=seed) for seed in range(100)]
    assert [other.reset(seed=seed) for seed in reversed(range(100))] == first[::-1]
    assert len({observation for observation, _ in first}) > 90
    assert len({info["instruction"] for _, info in first}) == 1
    env.reset(seed=0)
    assert len({env.reset()[0] for _ in range(10)}) > 5  # unseeded resets go on with the stream


def test_registering_twice_changes_nothing():
    before = dict(gymnasium.registry)
    envs.register()
    assert gymnasium.registry == before
    assert set(IDS) < set(before)
    assert {"rljax/Described-v0", "rljax/TextArena-v0"} < set(before)


def test_importing_the_package_loads_nothing():
    script = (
        "import sys, envs; print(*(name for name in ('numpy', 'gymnasium', 'envs.sokoban') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_scripted_agents_are_found_by_id():
    assert set(SCRIPTED) == {*IDS, "rljax/WebShop-v0"}
    assert all(hasattr(scripted_agent(env_id), "act") for env_id in SCRIPTED)
    with pytest.raises(LookupError, match="rljax/Described-v0 has no scripted agent; these have one: rljax/FrozenLake"):
        scripted_agent("rljax/Described-v0")
