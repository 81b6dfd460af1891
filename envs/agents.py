"""Baselines: who plays an environment without a model."""

from __future__ import annotations

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
