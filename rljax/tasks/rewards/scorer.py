"""Properties of a reward: where it runs, what it reads, whom it asks. Built-in ones declare them by the function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from rljax.tasks.rewards.reward import RewardFunction

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Place(Enum):
    """Executor that a reward runs on."""

    INLINE = "on the event loop: it is known to be quick"
    THREAD = "on a thread: it exists in this process alone"
    PROCESS = "in a worker process, which can be killed"
    AWAITED = "on an event loop of the rewards' own: it is an async function"


@dataclass(frozen=True, slots=True)
class Scorer:
    """A reward function that was looked up, with its settings.

    Attributes:
        name: as the config has it.
        part: the name that it is logged under.
        function: judges a response.
        place: where it runs.
        score_on_timeout: the score of a response that it cannot judge in time; None: that is an error. Where the
            response alone decides how long judging takes, dropping the trajectory would favour what is easily judged.
        check_answer: raises ValueError for a reference answer by which no response could be right.
        reads_answer: whether it needs a reference answer at all.
        check_row: takes a problem and the keyword arguments; raises ValueError for a row that it could not judge.
        columns: those of its arguments that name columns which that reads.
        source: what the ``source`` of a taskset that it scores begins with.
        time_limit: the argument that limits its own seconds, below `rollout.reward_timeout`; it returns the part
            `TIMED_OUT`.
        asks: the group of the config whose models it asks, ``judges`` or ``reward_models``.
        asked: the argument that names one of these.
        imports: modules that a worker process imports before it is asked, because they take long.
    """

    name: str
    part: str
    function: RewardFunction
    place: Place
    score_on_timeout: float | None = None
    check_answer: Callable[[str], None] | None = None
    reads_answer: bool = True
    check_row: Callable[..., None] | None = None
    columns: tuple[str, ...] = ()
    source: str = ""
    time_limit: str = ""
    asks: str = ""
    asked: str = ""
    imports: tuple[str, ...] = ()

    @property
    def of_groups(self) -> bool:
        """True for one that takes the responses of a whole group: its second parameter is called ``responses``."""
        return self._takes[1:] == ["responses"] and not self.of_batches

    @property
    def of_batches(self) -> bool:
        """True for one that takes what is waiting: its first two parameters are called ``tasks`` and ``responses``."""
        return self._takes == ["tasks", "responses"]

    @property
    def _takes(self) -> list[str]:
        """Names of the first two parameters."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # a function of C code may not tell its signature
            return []
        return [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY][:2]


BUILT_IN: dict[str, Scorer] = {}
"""By name, once their modules are imported: see `rljax.tasks.rewards.registry.built_in`."""


def built_in(name: str, place: Place, **properties: Any) -> Callable[[_Function], _Function]:
    """Declares a reward of this package, with attributes of its `Scorer`. A decorator."""

    def add(function: _Function) -> _Function:
        BUILT_IN[name] = Scorer(name, name, function, place, **properties)
        return function

    return add
