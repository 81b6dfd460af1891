"""Protocol of a taskset, and the tasks that it yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljax.trajectory import TaskId

Message = Mapping[str, str]
"""One chat message: ``role`` and ``content``."""


class BadRow(ValueError):
    """A row makes no task: one line with the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One summand of a task's score.

    Attributes:
        name: what the config calls it, such as ``numeric`` or ``package.module:function``.
        part: the name that it is logged under.
        weight: its factor in the sum.
        args: its keyword arguments, plain values.
        of_groups: whether it judges the responses of a group together.
        of_batches: whether it judges what is waiting, of any tasks, together.
    """

    name: str
    part: str
    weight: float = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)
    of_groups: bool = False
    of_batches: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt and the data that its rewards need.

    Attributes:
        id: taskset, epoch and position in the epoch.
        messages: the prompt as chat messages.
        answer: the reference answer as it stands in the data.
        seed: `environment_seed` of the task.
        metadata: the row's other columns; plain values.
        rewards: terms of its score, which are added up.
        environment: whether an environment of the taskset's name asks, answers and scores, begun from the seed.
    """

    id: TaskId
    messages: tuple[Message, ...]
    answer: str
    seed: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[RewardTerm, ...] = ()
    environment: bool = False


class Taskset(Protocol):
    """Ordered, resumable stream of tasks. Who iterates keeps the position: a taskset has no cursor.

    Attributes:
        name: its key in the config.
        weight: its share of the tasks, relative to the other tasksets.
    """

    name: str
    weight: float

    @property
    def bad_rows(self) -> int:
        """Rows that were skipped while loading."""
        ...

    @property
    def fingerprint(self) -> str:
        """Differs between sets that have other problems, or the same in another order; the same in every process. It
        does not cover how a problem is put and scored.
        """
        ...

    def __len__(self) -> int:
        """Returns the number of tasks in one epoch."""
        ...

    def task(self, epoch: int, index: int) -> Task:
        """Returns the task at a position of an epoch; a pure function of the run's seed, the epoch and the index.

        Raises:
            IndexError: the index is not below the length.
            BadRow: the row can no longer be read as it could when the taskset was loaded.
        """
        ...
