"""Base class of text environments whose actions are a few words, the same in every state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium

from envs import checks
from envs.text_env import Info, TextEnv


class WordEnv(TextEnv):
    """Implements the contract of `envs.text_env` for such games; a subclass implements the game.

    Words are read without regard to case and surrounding space. An action that is none of them, or that changes
    nothing, is named in one sentence before the picture of the state.
    """

    invalid_reward = 0.0  # of an action that is none; the game stands still

    def __init__(
        self, instruction: str, words: tuple[str, ...], render_mode: str | None = None, *, remarks: bool = True
    ) -> None:
        """Creates the environment. Without ``remarks`` the observation is the picture alone,
        whatever the last action was.
        """
        super().__init__(render_mode)
        self.instruction = instruction
        self.remarks = checks.flag("remarks", remarks)
        self.words = words
        self._index = {word.strip().lower(): index for index, word in enumerate(words)}
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begins an episode; see `envs.text_env`."""
        super().reset(seed=seed)
        self._begin(seed, options)
        self._over = False
        return self._picture(), {"instruction": self.instruction, **self._info()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Takes one action; see `envs.text_env`.

        Raises:
            gymnasium.error.ResetNeeded: when no episode is going on.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("no episode is going on; call reset first")
        index = self._index.get(action.strip().lower())
        reward, terminated, truncated, effective, remark = self.invalid_reward, False, False, False, ""
        if index is None:
            remark = "Your last action was not a valid action.\n"
        else:
            before = self._state()
            reward, terminated, truncated = self._act(index)
            effective = self._state() != before
            if not effective:
                remark = f"Your last action, {self.words[index]}, changed nothing.\n"
        self._over = terminated or truncated
        info = {**self._info(), "valid": index is not None, "effective": effective, "success": self._solved()}
        return remark * self.remarks + self._picture(), reward, terminated, truncated, info

    def render(self) -> str:
        """Returns the state as text, in every render mode."""
        return self._picture()

    def _info(self) -> Info:
        return {"actions": self.words, "suffix": "", "state": self._state()}

    @abstractmethod
    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Sets up an episode, drawing from ``self.np_random`` alone."""

    @abstractmethod
    def _act(self, index: int) -> tuple[float, bool, bool]:
        """Takes the action ``words[index]``; returns the reward and whether the episode terminated or was truncated."""

    @abstractmethod
    def _picture(self) -> str:
        """Returns the picture of the state that the player sees."""

    def _state(self) -> str:
        """Returns the state as far as the task depends on it; the picture, unless that shows more or less."""
        return self._picture()

    @abstractmethod
    def _solved(self) -> bool:
        """Returns whether the task is solved by now."""


def rules(game: str, words: tuple[str, ...], symbols: Mapping[str, str] | None = None) -> str:
    """Returns the instruction of a game: its rules, the meaning of its grid's symbols, and its actions."""
    lines = [f"{game} The answer must be one action in a turn."]
    if symbols:
        legend = ", ".join(f"{symbol}: {meaning}" for symbol, meaning in symbols.items())
        lines.append(f"The meaning of each symbol in the state is:\n{legend}")
    lines.append(f"Your available actions are:\n{', '.join(words)}")
    return "\n".join(lines)
