"""Runs rewards on responses, each where it can do no harm: on the event loop, a thread or a worker process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rljax.config.fields import ConfigError
from rljax.config.refusals import joined
from rljax.tasks.rewards.awaited import Asked, AwaitedRewards
from rljax.tasks.rewards.batches import Batches
from rljax.tasks.rewards.judge import Judge
from rljax.tasks.rewards.own_models import NotYet, asked_early, own_models
from rljax.tasks.rewards.prints import prints_to
from rljax.tasks.rewards.processes import WorkerProcesses
from rljax.tasks.rewards.registry import BATCH_SIZE, resolve_reward, take_printed
from rljax.tasks.rewards.reward import (
    TIMED_OUT,
    Response,
    Reward,
    RewardError,
    RewardTimeout,
    Tasks,
    reason_of,
    rewards_of,
)
from rljax.tasks.rewards.reward_model import RewardModel
from rljax.tasks.rewards.scorer import Place, Scorer
from rljax.tasks.rewards.threads import DeadlineThreads
from rljax.tasks.task import RewardTerm, Task, Taskset
from sidecar.errors import worth_a_line

_LOG = logging.getLogger(__name__)

TASKS_TRIED = 3
"""A reward that fails for all of these tasks is taken to fail for all; a rare failure is left to retries."""


class RewardRunner:
    """Scores responses by the rewards of their tasks, the rewards of one response side by side.

    Cheap built-ins run at once on the event loop, async functions on one of their own, registered functions on threads,
    all others in worker processes: a reward that raises, dies or never returns costs its own trajectory and no other.
    Workers are started only if one of ``rewards`` needs them, and then in the background.

    Args:
        rewards: names of the rewards that will be used (`tasks.*.*.rewards`).
        timeout: seconds for one reward of one response, or of one group.
        workers: worker processes.
        at_once: async rewards that are awaited at once; those that ask a model of our own are as many as it answers.
        batch_size: responses that a reward of batches takes at once, where it has no argument `BATCH_SIZE`.
        log: file that takes what rewards of files print, and these as they are imported; None to print where this
            process does.
        to_come: names of the models of our own, by group, that are not up yet, of a runner that only tries rewards
            before they are. Another one of this process will have what these print as they are imported.

    Attributes:
        judges: what async rewards may ask by name, on engines of the run's own; at first those of ``to_come``.
        reward_models: likewise, in this process.

    Raises:
        ConfigError: one of the rewards does not exist.
    """

    def __init__(
        self,
        rewards: Iterable[str],
        *,
        timeout: float,
        workers: int,
        at_once: int = 256,
        batch_size: int = 64,
        log: Path | None = None,
        to_come: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        scorers = {name: resolve_reward(name, "rewards") for name in rewards}
        self._prints = None if log is None else partial(_append, log)
        for name, scorer in scorers.items():
            if self._prints and to_come is None and ":" in name and scorer.place is Place.AWAITED:
                self._prints(take_printed(scorer))  # a worker imports its own again
        self._imported = {name: s for name, s in scorers.items() if s.place is Place.PROCESS}
        self._processes = WorkerProcesses(sorted(self._imported), limit=timeout, workers=workers, log=log)
        self._threads = DeadlineThreads(limit=timeout)
        self._limit = timeout
        self._awaited = AwaitedRewards(limit=timeout, at_once=at_once)
        self._batch_size = batch_size
        self._batches: dict[tuple[str, str], Batches[tuple[Task, str], Reward]] = {}
        self._only_tries = to_come is not None
        self._closed = False
        early = {group: dict.fromkeys(names, NotYet()) for group, names in (to_come or {}).items()}
        self.judges: Mapping[str, Judge | NotYet] = early.get("judges", {})
        self.reward_models: Mapping[str, RewardModel | NotYet] = early.get("reward_models", {})
        self._undecided: Counter[tuple[str, str]] = Counter()
        if self._imported:
            self._processes.warm()

    @property
    def pending(self) -> int:
        """Rewards that wait for, or run in, a worker."""
        waiting = sum(batches.waiting for batches in list(self._batches.values()))
        return self._processes.pending + self._threads.pending + self._awaited.pending + waiting

    async def score(self, task: Task, response: str, trajectory: str = "") -> Reward:
        """Computes the weighted sum of the task's rewards, but for those that take a whole group.

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
        (reward,) = await self._sums(task, [term for term in task.rewards if not term.of_groups], response, where)
        return reward

    async def score_group(self, task: Task, responses: Sequence[str]) -> tuple[Reward, ...]:
        """Computes, for each response of a group, the weighted sum of the task's rewards that take them together.

        Raises:
            RewardError: see `score`.
        """
        terms = [term for term in task.rewards if term.of_groups]
        return await self._sums(task, terms, tuple(responses), f"task {task.id}, its whole group")

    async def try_out(self, tasksets: Iterable[tuple[str, Taskset]]) -> None:
        """Calls each reward of each taskset, whose config path stands beside it, with the reference answer for a
        response. What asks a model that is yet to start is not known to fail.

        Raises:
            ConfigError: a reward fails for the first `TASKS_TRIED` tasks; or programs may take longer than it may. All
                but the first are its ``others``.
        """

        async def tried(key: str, taskset: Taskset, term: RewardTerm) -> None:
            own = resolve_reward(term.name, f"{key}.rewards").time_limit
            if own and (total := term.args[own]) >= self._limit:
                where = f"{key}.reward_args.{term.name}.{own}={total:g}"
                raise ConfigError(
                    f"{where}: must be below rollout.reward_timeout={self._limit:g}; lower it or raise that"
                )
            tasks = [taskset.task(0, index) for index in range(min(TASKS_TRIED, len(taskset)))]
            for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
                with asked_early() as early:
                    try:
                        await self._try(term, task, other)
                        return
                    except RewardError as error:
                        if early:
                            return
                        failure = error
            raise ConfigError(f"{key}.rewards={term.name!r}: fails when it is tried on the first tasks: {failure}")

        trials = [(key, one, term) for key, one in tasksets if len(one) for term in one.task(0, 0).rewards]
        refused: list[ConfigError] = []
        for outcome in await asyncio.gather(*(tried(*trial) for trial in trials), return_exceptions=True):
            if isinstance(outcome, ConfigError):
                refused.append(outcome)
            elif outcome is not None:
                raise outcome
        if refused:
            raise joined(refused)

    def close(self) -> None:
        """Closes workers and threads; what still waits fails with a `RewardError`."""
        self._closed = True
        for batches in list(self._batches.values()):
            batches.close(0.0)
        self._processes.close()
        self._threads.close()
        self._awaited.close(leave=self._only_tries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _sums(
        self, task: Task, terms: Sequence[RewardTerm], response: Response, where: str
    ) -> tuple[Reward, ...]:
        async def judged(term: RewardTerm) -> tuple[Reward, ...]:
            try:
                return await self._judge(term, task, response)
            except RewardError as error:
                raise type(error)(f"{where}: reward {term.name!r}: {error}") from error

        by_term = await _side_by_side([judged(term) for term in terms])
        count = 1 if isinstance(response, str) else len(response)
        return tuple(_sum(terms, [rewards[place] for rewards in by_term]) for place in range(count))

    async def _try(self, term: RewardTerm, task: Task, other: Task) -> None:
        if term.of_batches:
            await self._call(term, (task, other), (task.answer, other.answer))
        else:
            await self._judge(term, task, (task.answer, task.answer) if term.of_groups else task.answer)

    async def _judge(self, term: RewardTerm, task: Task, response: Response) -> tuple[Reward, ...]:
        if term.of_batches and isinstance(response, str):
            return (await asyncio.wrap_future(self._batches_of(term).ask((task, response))),)
        scorer = self._scorer(term)
        try:
            rewards = await self._call(term, task, response)
        except RewardTimeout:
            if scorer.score_on_timeout is None:
                raise
            self._say_late(term, task, "cannot judge the response in time: it counts as wrong")
            return (Reward(scorer.score_on_timeout),)
        if scorer.time_limit and rewards[0].parts[TIMED_OUT]:
            self._say_late(term, task, f"tries no further tests after {scorer.time_limit}: they count as failed")
        return rewards

    async def _call(self, term: RewardTerm, tasks: Tasks, response: Response) -> tuple[Reward, ...]:
        scorer = self._scorer(term)
        if scorer.place is Place.INLINE:
            return _inline(scorer, term, tasks, response)
        if scorer.place is Place.PROCESS:
            return await self._processes.judge(term, tasks, response)
        function = partial(scorer.function, **term.args)
        if scorer.place is Place.THREAD:
            return await self._threads.judge(function, tasks, response)
        with own_models(self._own), prints_to(self._prints if ":" in term.name else None):
            return await self._awaited.judge(function, tasks, response, self._asked(scorer, term))

    def _scorer(self, term: RewardTerm) -> Scorer:
        # A registered function is looked up each time: a notebook may have replaced it.
        return self._imported.get(term.name) or resolve_reward(term.name, "rewards")

    def _batches_of(self, term: RewardTerm) -> Batches[tuple[Task, str], Reward]:
        """Returns what gathers for calls of this reward with these arguments, one at a time."""

        def answer(batch: list[tuple[Task, str]]) -> tuple[Reward, ...]:
            tasks, responses = zip(*batch, strict=True)
            return asyncio.run(self._call(term, tasks, responses))

        key = term.name, repr(term.args)
        if self._closed:
            raise RewardError("the rewards were closed")
        if key not in self._batches:
            most = term.args.get(BATCH_SIZE) or self._batch_size
            made = Batches(f"reward {term.name}", most, answer, closed="the rewards were closed")
            return self._batches.setdefault(key, made)
        return self._batches[key]

    def _say_late(self, term: RewardTerm, task: Task, what: str) -> None:
        self._undecided[term.name, what] += 1
        if worth_a_line(count := self._undecided[term.name, what]):
            _LOG.warning("task %s: reward %r %s (%d so far)", task.id, term.name, what, count)

    @property
    def _own(self) -> dict[str, Mapping[str, Asked]]:
        return {"judges": self.judges, "reward_models": self.reward_models}

    def _asked(self, scorer: Scorer, term: RewardTerm) -> Asked | None:
        """Returns the model of our own that a reward is known to ask."""
        return self._own[scorer.asks].get(term.args[scorer.asked] or "") if scorer.asks else None


def _append(log: Path, text: str) -> None:
    if text:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)


async def _side_by_side(calls: list[Coroutine[Any, Any, tuple[Reward, ...]]]) -> list[tuple[Reward, ...]]:
    """Returns the results of all; where one fails the others are cancelled."""
    if len(calls) == 1:
        return [await calls[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except* RewardError as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _sum(terms: Sequence[RewardTerm], rewards: Sequence[Reward]) -> Reward:
    total, parts = 0.0, {}
    for term, reward in zip(terms, rewards, strict=True):
        total += term.weight * reward.score
        parts[term.part] = reward.score
        parts.update({f"{term.part}/{name}": part for name, part in reward.parts.items()})
    return Reward(total, parts)


def _inline(scorer: Scorer, term: RewardTerm, tasks: Tasks, response: Response) -> tuple[Reward, ...]:
    try:
        return rewards_of(scorer.function, scorer.function(tasks, response, **term.args), response)
    except Exception as error:
        raise RewardError(reason_of(error)) from error
