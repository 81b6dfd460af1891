"""Baselines: who plays an environment without a model."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np


class Agent(Protocol):
    """Plays one episode at a time."""

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Called after the environment's reset; a scripted agent may look into ``env.unwrapped``."""
        ...

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next action."""
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
    """A new scripted agent for an environment.

    Raises:
        LookupError: where it has none.
    """
    if env_id not in SCRIPTED:
        raise LookupError(f"{env_id} has no scripted agent; these have one: {', '.join(SCRIPTED)}")
    module, name = SCRIPTED[env_id].split(":")
    agent: Agent = getattr(importlib.import_module(module), name)()
    return agent


class RandomAgent:
    """Takes one of the actions that are valid now, each as likely."""

    def __init__(self, words: Sequence[str] = ("a",)) -> None:
        """``words`` stand where an action holds free text."""
        self._words = tuple(words)
        self._random = np.random.default_rng(0)

    def begin(self, env: gymnasium.Env[str, str], seed: int) -> None:
        """Forgets what was before; ``seed`` alone decides what it does."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Any valid action."""
        action = str(self._random.choice(info["actions"]))
        return action.replace("<text>", str(self._random.choice(self._words)))


def play(env: gymnasium.Env[str, str], agent: Agent, seed: int, max_actions: int = 100) -> tuple[float, bool, int]:
    """Plays one episode: the sum of its rewards, whether it was solved, and the actions taken."""
    observation, info = env.reset(seed=seed)
    agent.begin(env, seed)
    total, taken, over = 0.0, 0, False
    while not over and taken < max_actions:
        observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
        total, taken, over = total + float(reward), taken + 1, terminated or truncated
    return total, bool(info["success"]), taken
