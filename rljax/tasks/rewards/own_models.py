"""Models of the run's own that async rewards may ask by name: those of ``judges`` and ``reward_models``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from rljax.tasks.rewards.reward import RewardError

_here: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("own_models")
_early: ContextVar[list[str]] = ContextVar("asked_early")


class NotYet:
    """Stands for a model that is yet to start, where rewards are tried before it has."""

    at_once = 1


@contextlib.contextmanager
def own_models(models: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Makes models, by group of the config and name, known to async rewards called while the context lasts."""
    token = _here.set(models)
    try:
        yield
    finally:
        _here.reset(token)


@contextlib.contextmanager
def asked_early() -> Iterator[list[str]]:
    """Yields a list that takes the names of the models that are asked in this context before they are up.

    What a reward makes of the error then, which it may catch, says nothing of what it does when they are.
    """
    token = _early.set([])
    try:
        yield _early.get()
    finally:
        _early.reset(token)


def is_tried() -> bool:
    """Returns whether a reward is only tried here, as it is before a run begins."""
    return _early.get(None) is not None


def own_model(group: str, name: str, error: type[RewardError] = RewardError) -> Any:
    """Returns the model of that name.

    Raises:
        RewardError: or the one given: this process has none of that name, or it is not up yet.
    """
    there = _here.get({}).get(group, {})
    if name not in there:
        raise error(f"{group}.{name}: there is no such model here; there are {', '.join(there) or 'none'}")
    if isinstance(there[name], NotYet):
        _early.get([]).append(f"{group}.{name}")
        raise error(f"{group}.{name}: it is not up yet")
    return there[name]
