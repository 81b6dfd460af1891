"""Baseline agents: play an environment without a model."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np


class Agent(Protocol):
    """Plays one episode at a time."""

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Prepares for an episode, after the environment's reset; a scripted agent may read ``env.unwrapped``."""
        ...

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Returns the next action."""
        ...


# environment id -> where its scripted agent is; imported when asked for
SCRIPTED = {
    "rljax/FrozenLake-v0": "envs.solvers:FrozenLakeSolver",
    "rljax/SimpleSokoban-v0": "envs.solvers:SokobanSolver",
    "rljax/LargerSokoban-v0": "envs.solvers:SokobanSolver",
    "rljax/SokobanDifferentGridVocab-v0": "envs.solvers:SokobanSolver",
    "rljax/WebShop-v0": "envs.webshop.solver:WebShopSolver",
}


def scripted_agent(env_id: str) -> Agent:
    """Makes a new scripted agent for an environment.

    Raises:
        LookupError: where it has none.
    """
    if env_id not in SCRIPTED:
        raise LookupError(f"{env_id} has no scripted agent; these have one: {', '.join(SCRIPTED)}")
    module, name = SCRIPTED[env_id].split(":")
    agent: Agent = getattr(importlib.import_module(module), name)()
    return agent


class RandomAgent:
    """Chooses uniformly among the actions that are valid now."""

    def __init__(self, words: Sequence[str] = ("a",)) -> None:
        """Creates the agent; ``words`` are chosen from where an action holds free text."""
        self._words = tuple(words)
        self._random = np.random.default_rng(0)

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Seeds the random generator anew: ``seed`` alone decides the actions of the episode."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Returns a random valid action."""
        action = str(self._random.choice(info["actions"]))
        return action.replace("<text>", str(self._random.choice(self._words)))


def play(env: gymnasium.Env[str, str], agent: Agent, seed: int, max_actions: int = 100) -> tuple[float, bool, int]:
    """Plays one episode; returns the sum of its rewards, whether it was solved, and the number of actions taken."""
    observation, info = env.reset(seed=seed)
    agent.begin(env, seed)
    total, taken, over = 0.0, 0, False
    while not over and taken < max_actions:
        observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
        total, taken, over = total + float(reward), taken + 1, terminated or truncated
    return total, bool(info["success"]), taken
