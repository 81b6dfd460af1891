"""Workflows that break the contract, each in one way; and one that keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
        }[self._breaks]()


class Sync:
    """A workflow whose run is no coroutine."""

    def __init__(self, tools: Tools) -> None: ...

    def run(self, task: Any, attempt: Any, pool: Any) -> Any: ...


class TakesMore:
    """A workflow that would need a positional argument that nobody has."""

    def __init__(self, tools: Tools, other: int) -> None: ...

    async def run(self, task: Any, attempt: Any, pool: Any) -> Any: ...
