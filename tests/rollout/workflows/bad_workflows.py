"""Workflows that break the contract, each in one way; and one that keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rljax.rollout.workflows.single_turn import SingleTurn
from rljax.rollout.workflows.tools import Tools


class Mine:
    """A workflow that keeps the contract, unless told otherwise."""

    def __init__(self, tools: Tools, *, breaks: str = "", bound: int = 3) -> None:
        self._inner = SingleTurn(tools)
        self._breaks = breaks
        self.bound = bound

    async def run(self, task: Any, attempt: Any, pool: Any) -> Any:
        made = await self._inner.run(task, attempt, pool)
        return {
            "": lambda: made,
            "type": lambda: (made.token_ids, made.reward),
            "member": lambda: replace(made, member=made.member + 1),
            "reward": lambda: replace(made, reward=float("nan")),
            "version": lambda: replace(made, versions=made.versions - made.loss_mask),
            "row": lambda: replace(
                made, rows=np.array([(0, made.prompt_length), (made.prompt_length, made.turns[-1, 1])])
            ),
            "logprobs": lambda: replace(made, logprobs=np.where(made.loss_mask, -np.inf, made.logprobs)),
            "turn_rewards": lambda: replace(made, turn_rewards=np.array([np.nan])),
        }[self._breaks]()


class Judging:
    """A judge of groups that breaks the contract in one way, or in none."""

    def __init__(self, breaks: str = "") -> None:
        self._breaks = breaks

    async def run(self, task: Any, attempt: Any, pool: Any) -> Any: ...

    async def judge_group(self, task: Any, members: Any) -> Any:
        first, *others = [replace(member, reward=member.reward + 1) for member in members]
        return {
            "": lambda: (first, *others),
            "nothing": lambda: None,
            "fewer": lambda: others,
            "order": lambda: [*others, first],
            "reward": lambda: [replace(first, reward=float("inf")), *others],
        }[self._breaks]()


class Sync:
    """A workflow whose run is no coroutine."""

    def __init__(self, tools: Tools) -> None: ...

    def run(self, task: Any, attempt: Any, pool: Any) -> Any: ...


class TakesMore:
    """A workflow that would need a positional argument that nobody has."""

    def __init__(self, tools: Tools, other: int) -> None: ...

    async def run(self, task: Any, attempt: Any, pool: Any) -> Any: ...
