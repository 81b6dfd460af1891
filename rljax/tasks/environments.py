"""Tasksets of environments: a task is a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rljax.config.environments import EnvironmentConfig
from rljax.tasks.seeds import environment_seed, stable_hash
from rljax.tasks.task import Task
from rljax.trajectory import TaskId

ENDLESS = 2**31 - 1
"""Seeds of an epoch in training; no run comes to the end of them."""


class EnvironmentTaskset:
    """Taskset of the seeds of one kind of environment. Implements `task.Taskset`.

    Args:
        tag: its name in the config.
        config: the environment.
        weight: its share of the tasks, relative to the other tasksets.
        seed: the run's seed.
        role: ``train`` or ``validation``, whose seeds never meet.
        size: seeds of an epoch.
    """

    def __init__(
        self,
        tag: str,
        config: EnvironmentConfig,
        weight: float,
        seed: int,
        role: Literal["train", "validation"],
        size: int = ENDLESS,
    ) -> None:
        self.name = tag
        self.weight = weight
        self.bad_rows = 0
        self._config = config
        self._seed = seed
        self._stream = tag if role == "train" else f"{role}/{tag}"
        self._size = size

    @property
    def fingerprint(self) -> str:
        """See `Taskset.fingerprint`."""
        arguments = sorted((name, repr(value)) for name, value in self._config.kwargs.items())
        return f"{stable_hash(self._size, self._config.id, *(part for pair in arguments for part in pair)):016x}"

    def __len__(self) -> int:
        return self._size

    def task(self, epoch: int, index: int) -> Task:
        """See `Taskset.task`."""
        if not 0 <= index < self._size:
            raise IndexError(f"taskset {self.name}: task {index} of {self._size}")
        seed = environment_seed(self._seed, TaskId(self._stream, epoch, index))
        return Task(TaskId(self.name, epoch, index), (), "", seed, environment=True)


def environment_tasksets(
    tags: Mapping[str, int],
    environments: Mapping[str, EnvironmentConfig],
    seed: int,
    role: Literal["train", "validation"],
) -> dict[str, EnvironmentTaskset]:
    """Builds a taskset for each tag. ``tags`` has its groups: in training its share, in validation its size."""
    return {
        tag: EnvironmentTaskset(
            tag, environments[tag], float(groups), seed, role, ENDLESS if role == "train" else groups
        )
        for tag, groups in tags.items()
        if groups
    }
