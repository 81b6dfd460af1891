"""Reward by a reward model: what its head says of the dialogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rljax.config.reward_models import ASKS_REWARD_MODELS
from rljax.tasks.rewards.own_models import own_model
from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.task import Message, Task


class RewardModel(Protocol):
    """A model of the run's own, from the section ``reward_models`` of the config.

    Attributes:
        at_once: dialogues that it takes side by side; further ones would wait for them.
    """

    at_once: int

    async def score(self, messages: Sequence[Message], response: str) -> float:
        """Returns the score of a response to a dialogue.

        Raises:
            RewardError: it has none: the row is too long, computing fails, or the model was closed.
        """
        ...


def own_reward_model(name: str) -> RewardModel:
    """Returns the reward model of that name, for an async reward.

    Raises:
        RewardError: this process has none of that name.
    """
    model: RewardModel = own_model("reward_models", name)
    return model


@built_in(ASKS_REWARD_MODELS, Place.AWAITED, reads_answer=False, asks="reward_models", asked="model")
async def reward_model(task: Task, response: str, *, model: str = "") -> float:
    """Returns the score of the reward model that ``model`` names in the section ``reward_models`` of the config."""
    return await own_reward_model(model).score(task.messages, response)
