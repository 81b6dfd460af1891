"""Rows of any `reasoning_gym` data set, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rljax.config.validate import ConfigError
from rljax.tasks.cells import nearest
from rljax.tasks.procedural import HELD_OUT
from rljax.tasks.rows import Problem
from rljax.tasks.seeds import stable_hash
from rljax.tasks.task import BadRow
from sidecar.extras import install_command

ENTRY = "reasoning_gym"
"""Key of `Task.metadata` under which the reward finds the data set, its arguments and the entry."""

_ATTEMPTS = 40 * HELD_OUT


class ReasoningGymRows:
    """Rows of one split of a generated data set: the hash of a question's text says which split it belongs to.

    A place whose question falls on the other side is generated anew from the next stretch of seeds.

    Args:
        name: the data set's name in `reasoning_gym`.
        side: ``train`` or ``validation``.
        args: its configuration; ``seed`` is 0 unless given.
        key: config path of the taskset, for messages.

    Raises:
        ConfigError: the package is missing, or it refuses the name or the arguments.
    """

    bad_rows = 0

    def __init__(self, name: str, side: str, args: Mapping[str, Any], key: str) -> None:
        self._name = name
        self._args = {"seed": 0, **args}
        self._side = side
        self._attempts: dict[int, int] = {}
        check_arguments(name, self._args, key)
        try:
            self._datasets = {0: self._dataset(0)}
        except (TypeError, ValueError, AssertionError, OSError) as error:
            raise ConfigError(f"{key}.args={dict(args)}: reasoning_gym refuses them: {error}") from error

    def __len__(self) -> int:
        return len(self._datasets[0])

    def problem(self, index: int) -> Problem:
        """Generates the question at an index.

        Raises:
            BadRow: the generator failed there, or makes no question for this side.
        """
        known = self._attempts.get(index)
        for attempt in range(_ATTEMPTS) if known is None else (known,):
            entry = self._entry(index, attempt)
            held_out = stable_hash("held-out", entry["question"]) % HELD_OUT == 0
            if held_out == (self._side == "validation"):
                self._attempts[index] = attempt
                # One data set of the arguments' own seed serves the scorer: none of them looks at the seed to score.
                scored = {"dataset": self._name, "args": self._args, "entry": entry}
                return Problem(
                    entry["question"], "" if entry["answer"] is None else str(entry["answer"]), {ENTRY: scored}
                )
        raise BadRow(
            f"reasoning_gym:{self._name}: no {self._side} question in {_ATTEMPTS} attempts at place {index}; "
            "its problem space is too small to hold some out"
        )

    def _entry(self, index: int, attempt: int) -> dict[str, Any]:
        dataset = self._datasets.get(attempt) or self._datasets.setdefault(attempt, self._dataset(attempt))
        try:
            entry: dict[str, Any] = dataset[index]
        except Exception as error:
            raise BadRow(f"reasoning_gym:{self._name}: place {index} fails: {type(error).__name__}: {error}") from error
        return entry

    def _dataset(self, attempt: int) -> Any:
        import reasoning_gym

        # Its items are functions of seed + place, so the next stretch of seeds starts where this one ends.
        stretch = len(self._datasets[0]) if attempt else 0
        return reasoning_gym.create_dataset(
            self._name, **{**self._args, "seed": self._args["seed"] + attempt * stretch}
        )


def check_arguments(name: str, args: Mapping[str, Any], key: str) -> None:
    """Checks the name of the data set and those of its arguments.

    Raises:
        ConfigError: the package is missing, or does not know one of them.
    """
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(f"{key}.source='reasoning_gym:{name}': needs {install_command('data')}") from error
    if name not in DATASETS:
        raise ConfigError(
            f"{key}.source='reasoning_gym:{name}': no such data set; {nearest(name, DATASETS, 'there are')}"
        )
    fields = [field.name for field in dataclasses.fields(DATASETS[name][1])]
    for arg in args:
        if arg not in fields:
            raise ConfigError(f"{key}.args.{arg}: no such argument of {name}; {nearest(arg, fields, 'there are')}")
