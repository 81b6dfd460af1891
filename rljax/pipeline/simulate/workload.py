"""The work of a run without a model: tasks without content, and attempts whose turns take drawn lengths and seconds."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from rljax.trajectory import NOT_SAMPLED, TaskId, Trajectory
from sidecar.protocol import GenerateRequest, SamplingParams

Draw = Callable[[random.Random], float]
"""Draws a value."""
_PROMPT = np.zeros(1, np.int32)
_ASKED = np.full(1, NOT_SAMPLED, np.int32)
"""Version of a token of a prompt, or of an environment, before each reply."""


def constant(value: float) -> Draw:
    """Returns what always draws ``value``."""
    return lambda _: value


NOTHING = constant(0.0)
"""Draws 0."""


def normal(mean: float, deviation: float, least: float = 0.0) -> Draw:
    """Returns what draws from a normal distribution; what is below ``least`` is ``least``."""
    return lambda rng: max(least, rng.gauss(mean, deviation))


def lognormal(mean: float, deviation: float, most: float = math.inf) -> Draw:
    """Returns what draws from the log-normal distribution of this mean and standard deviation, not above ``most``."""
    spread = math.log1p((deviation / mean) ** 2)
    middle, width = math.log(mean) - spread / 2, math.sqrt(spread)
    return lambda rng: min(most, rng.lognormvariate(middle, width))


def observed(values: np.ndarray) -> Draw:
    """Returns what draws one of these values, each as likely as any other."""
    return partial(_one_of, [float(value) for value in values])


def _one_of(values: list[float], rng: random.Random) -> float:
    return values[rng.randrange(len(values))]


class NoContent:
    """Taskset of tasks without content. Implements `rljax.tasks.task.Taskset`."""

    weight, bad_rows, fingerprint = 1.0, 0, ""

    def __init__(self, name: str, size: int = 10**6) -> None:
        self.name = name
        self._size = size

    def __len__(self) -> int:
        return self._size

    def task(self, epoch: int, index: int) -> Task:
        """Implements `Taskset.task`."""
        return Task(TaskId(self.name, epoch, index), ({"role": "user", "content": ""},), "")


@dataclass
class Thread:
    """A thread that many share: what they have it do is done one after the other, in the order in which they ask."""

    _free: float = 0.0

    async def work(self, seconds: float) -> None:
        """Waits for its turn, and for so many seconds more."""
        if seconds > 0.0:
            now = asyncio.get_running_loop().time()
            self._free = max(self._free, now) + seconds
            await asyncio.sleep(self._free - now)


@dataclass(frozen=True)
class Attempts:
    """Workflow of so many turns of engine and environment. Implements `Workflow`.

    Attributes:
        turns: number of turns, at least one.
        tokens: of a turn's reply.
        environment_seconds: that the environment takes after each reply.
        before_seconds: that pass before the first turn, as for a reset.
        explorer_seconds: that the explorer's event loop works for a reply, half of them before the request.
        explorer: that event loop.
    """

    turns: Draw
    tokens: Draw
    environment_seconds: Draw = NOTHING
    before_seconds: Draw = NOTHING
    explorer_seconds: float = 0.0
    explorer: Thread = field(default_factory=Thread)

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`."""
        affinity, versions = str(task.id), [_ASKED]
        turns: list[tuple[int, int]] = []
        name = f"{affinity}/{attempt.member}/{attempt.retry}/{attempt.validation}"
        seed = attempt.seed(task, 0)
        rng = random.Random(seed)
        await _pass(self.before_seconds(rng))
        for turn in range(max(1, round(self.turns(rng)))):
            sampling = SamplingParams(max_new_tokens=max(1, round(self.tokens(rng))), seed=seed)
            priority = self.priority(attempt, sampling.max_new_tokens)
            request = GenerateRequest(
                f"{name}/{turn}", _PROMPT, sampling, attempt.min_version, affinity, priority=priority
            )
            await self.explorer.work(self.explorer_seconds / 2)
            reply = await pool.generate(request, attempt.lineage, validation=attempt.validation)
            await self.explorer.work(self.explorer_seconds / 2)
            start = turns[-1][1] + 1 if turns else 1
            turns.append((start, start + len(reply.versions)))
            versions += [reply.versions, _ASKED]
            await _pass(self.environment_seconds(rng))
        return _trajectory(np.concatenate(versions[:-1]), turns, reward=float(seed % 2), member=attempt.member)

    def priority(self, attempt: Attempt, tokens: int) -> int:
        """Returns the priority of a request for so many tokens: as of real ones, older groups come first."""
        return attempt.group


def _trajectory(versions: np.ndarray, turns: list[tuple[int, int]], reward: float, member: int) -> Trajectory:
    zeros = np.zeros(len(versions), np.int32)
    return Trajectory(
        zeros,
        versions != NOT_SAMPLED,
        zeros.astype(np.float32),
        versions,
        np.array(turns, np.int32),
        reward,
        member=member,
    )


async def _pass(seconds: float) -> None:
    if seconds > 0.0:
        await asyncio.sleep(seconds)
