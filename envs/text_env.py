"""Contract and base class of text environments: `gymnasium.Env` with text observations and actions.

The caller (a rollout, a person in the terminal, a test) relies on this and on nothing else:

- ``reset(seed=n)`` is a pure function of the seed: the same text in every process, on every machine.
- ``step(text)`` takes any string while an episode is going on. One that is no action of the environment, the empty
  string included, is *invalid*: the episode goes on, the observation says so, and ``info["valid"]`` is False. What a
  mistake of format costs beyond the environment's own reward is the caller's affair.
- ``info`` of ``reset`` and ``step``:

  - ``instruction`` (str, `reset` only): the rules, the vocabulary and how actions are written; the same for every seed,
    except where an adapted game tells its player a role or a secret along with its rules.
  - ``actions`` (tuple of str): what is valid now, for players and baselines. Where actions hold free text, its place is
    written ``search[<text>]``.
  - ``suffix`` (str): what is to be shown after the observation, such as the actions of this state; may be empty.
  - ``state`` (str): the state as far as the task depends on it; equal states have equal strings.
  - ``valid`` (bool, `step` only): whether the action was one.
  - ``effective`` (bool, `step` only): whether it changed the state.
  - ``success`` (bool, `step` only): whether the task is solved by now.
- ``render()`` with ``render_mode="ansi"`` is the state as text.
"""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium import spaces

Info = dict[str, Any]


class AnyText(spaces.Text):
    """Space of texts of up to ``max_length`` characters, whatever these are; samples are printable ASCII."""

    def __init__(self, max_length: int = 100_000) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Returns whether ``x`` is a string that is short enough."""
        return isinstance(x, str) and len(x) <= self.max_length


class TextEnv(gymnasium.Env[str, str]):
    """Base class of the text environments."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (gymnasium's own type)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = AnyText()
        self.action_space = AnyText()
