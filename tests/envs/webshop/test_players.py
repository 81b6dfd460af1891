from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import envs
from envs.agents import Agent, RandomAgent, play
from envs.webshop.solver import WebShopSolver

EPISODES = 150


def shop(split: str, **arguments: object) -> gymnasium.Env[str, str]:
    envs.register()
    return gymnasium.make("rljax/WebShop-v0", split=split, **arguments)


def played(env: gymnasium.Env[str, str], agent: Agent) -> tuple[float, float]:
    episodes = [play(env, agent, seed) for seed in range(EPISODES)]
    return float(np.mean([reward for reward, _, _ in episodes])), float(np.mean([solved for _, solved, _ in episodes]))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("catalogue_seed", [0, 1])
def test_the_solver_solves_nearly_all(split: str, catalogue_seed: int) -> None:
    reward, solved = played(shop(split, catalogue_seed=catalogue_seed), WebShopSolver())
    assert reward >= 0.98
    assert solved >= 0.98


def test_a_random_player_solves_nearly_none() -> None:
    env = shop("train")
    reward, solved = played(env, RandomAgent(env.unwrapped.shop.queries()))  # type: ignore[attr-defined]
    assert 0 < reward < 0.2
    assert solved < 0.05


def test_the_solver_buys_something_where_it_finds_nothing() -> None:
    env = shop("train")
    env.reset(seed=0)
    agent = WebShopSolver()
    agent.begin(env, 0)
    agent._asin = "nowhere"
    info = env.unwrapped._info()  # type: ignore[attr-defined]
    done = False
    for _ in range(40):
        _, _, done, _, info = env.step(agent.act("", info))
        assert info["valid"]
        if done:
            break
    assert done


def test_the_solver_plays_webshop_alone() -> None:
    with pytest.raises(TypeError, match="WebShopSolver plays WebShop, not CartPoleEnv"):
        WebShopSolver().begin(gymnasium.make("CartPole-v1"), 0)
