"""Functions of a worker process. They return plain values alone: no reward can break the pipe by its own types."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rljax.tasks.rewards.registry import resolve_reward, take_printed
from rljax.tasks.rewards.reward import Response, Reward, Tasks, reason_of, rewards_of
from rljax.tasks.rewards.scorer import Scorer
from rljax.tasks.task import RewardTerm
from sidecar.workers.child_process import redirect_output
from sidecar.workers.lifeline import hold


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a reward gave no score, in one line."""

    reason: str


def begin(names: Sequence[str], log: str) -> None:
    """Guards against the parent's death, and imports the rewards' modules: the first response must not pay for it.

    ``log`` is the file that takes what is printed here; empty to print where the parent does.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    hold(parent.pid)
    if log:
        redirect_output(log)
    for name in names:
        # Whatever is wrong will be wrong again when the reward is called, and is reported then.
        with contextlib.suppress(Exception):
            for module in _scorer(name).imports:
                importlib.import_module(module)


def ready() -> bool:
    """Does nothing; its return shows that a worker is up."""
    return True


def judge(term: RewardTerm, tasks: Tasks, response: Response) -> tuple[Reward, ...] | Failure:
    """Calls a reward with its arguments from the config. The parent kills this process when that takes too long."""
    try:
        function = _scorer(term.name).function
        return rewards_of(function, function(tasks, response, **term.args), response)
    except BaseException as error:
        return Failure(reason_of(error))


@lru_cache(maxsize=64)
def _scorer(name: str) -> Scorer:
    scorer = resolve_reward(name, "rewards")
    print(take_printed(scorer), end="", flush=True)
    return scorer
