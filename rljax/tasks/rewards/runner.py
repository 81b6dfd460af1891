"""Runs rewards on responses, each where it can do no harm: on the event loop, a thread or a worker process."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rljax.tasks.rewards.processes import WorkerProcesses
from rljax.tasks.rewards.registry import Place, Scorer, resolve_reward
from rljax.tasks.rewards.reward import Reward, RewardError, RewardTimeout, as_reward
from rljax.tasks.rewards.threads import DeadlineThreads
from rljax.tasks.task import RewardTerm, Task
from sidecar.errors import describe

_LOG = logging.getLogger(__name__)


class RewardRunner:
    """Scores responses by the rewards of their tasks.

    Cheap built-ins run at once on the event loop, registered functions on threads, all others in worker processes: a
    reward that raises, dies or never returns costs its own trajectory and no other. Workers are started only if one of
    ``rewards`` needs them, and then in the background.

    Args:
        rewards: names of the rewards that will be used (`tasks.*.*.rewards`).
        timeout: seconds for one reward of one response.
        workers: worker processes.
        log: file that takes what rewards print in worker processes; None to print where this process does.

    Raises:
        ConfigError: one of the rewards does not exist.
    """

    def __init__(self, rewards: Iterable[str], *, timeout: float, workers: int, log: Path | None = None) -> None:
        scorers = {name: resolve_reward(name, "rewards") for name in rewards}
        self._imported = {name: scorer for name, scorer in scorers.items() if scorer.place is Place.PROCESS}
        self._processes = WorkerProcesses(sorted(self._imported), limit=timeout, workers=workers, log=log)
        self._threads = DeadlineThreads(limit=timeout)
        if self._imported:
            self._processes.warm()

    @property
    def pending(self) -> int:
        """Rewards that wait for, or run in, a worker."""
        return self._processes.pending + self._threads.pending

    async def score(self, task: Task, response: str, trajectory: str = "") -> Reward:
        """Computes the weighted sum of the task's rewards.

        Args:
            task: says which rewards, with which weights.
            response: text of the trajectory's response.
            trajectory: names the trajectory in messages, such as ``member 3``.

        Returns:
            The weighted sum, and the unweighted score of each reward by name (its own parts as ``name/part``).

        Raises:
            RewardTimeout: a reward outlived its limit.
            RewardError: a reward raised, died, or returned no finite number; or the task has no reward.
        """
        where = f"task {task.id}{f', {trajectory}' if trajectory else ''}"
        if not task.rewards:
            raise RewardError(f"{where}: has no reward")
        total, parts = 0.0, {}
        for term in task.rewards:
            try:
                reward = await self._judge(term, task, response)
            except RewardError as error:
                raise type(error)(f"{where}: reward {term.name!r}: {error}") from error
            total += term.weight * reward.score
            parts[term.part] = reward.score
            parts.update({f"{term.part}/{name}": part for name, part in reward.parts.items()})
        return Reward(total, parts)

    def close(self) -> None:
        """Closes workers and threads; what still waits fails with a `RewardError`."""
        self._processes.close()
        self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _judge(self, term: RewardTerm, task: Task, response: str) -> Reward:
        # A registered function is looked up each time: a notebook may have replaced it.
        scorer = self._imported.get(term.name) or resolve_reward(term.name, "rewards")
        if scorer.place is Place.INLINE:
            return _inline(scorer, term, task, response)
        if scorer.place is Place.THREAD:
            return await self._threads.judge(partial(scorer.function, **term.args), task, response)
        try:
            return await self._processes.judge(term, task, response)
        except RewardTimeout:
            if scorer.score_on_timeout is None:
                raise
            _LOG.warning("task %s: reward %r cannot judge the response in time: it counts as wrong", task.id, term.name)
            return Reward(scorer.score_on_timeout)


def _inline(scorer: Scorer, term: RewardTerm, task: Task, response: str) -> Reward:
    try:
        return as_reward(scorer.function(task, response, **term.args))
    except Exception as error:
        raise RewardError(describe(error)) from error
