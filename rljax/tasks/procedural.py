"""Generates problems from a number: small tasks on which learning shows within minutes.

The problem space of a generator is laid out in one fixed shuffled order. Its first tenth is the validation side, the
rest the training side: the two never share a problem, whatever the seed of the run.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rljax.config.validate import ConfigError
from rljax.tasks.cells import nearest
from rljax.tasks.permutation import Permutation
from rljax.tasks.rows import Problem
from rljax.tasks.seeds import stable_hash

HELD_OUT = 10
"""One problem in this many is held out for validation."""

SIDES = ("train", "validation")


class Generator(Protocol):
    """Problem space, numbered from 0."""

    name: ClassVar[str]

    @property
    def space(self) -> int:
        """Number of problems."""
        ...

    def problem(self, number: int) -> Problem:
        """Returns the problem of that number."""
        ...


@dataclass(frozen=True)
class ReverseDigits:
    """``4815`` → ``5184``: all strings of ``digits`` digits, leading zeros included.

    Attributes:
        digits: length, 1 to 18.
        separator: stands between the digits, for tokenizers that would join them.
    """

    name: ClassVar[str] = "reverse_digits"
    limits: ClassVar[Mapping[str, tuple[int, int]]] = {"digits": (1, 18)}

    digits: int = 4
    separator: str = ""

    @property
    def space(self) -> int:
        """Number of strings of that length."""
        return 10**self.digits

    def problem(self, number: int) -> Problem:
        """Returns the number's decimal digits, and the same reversed."""
        digits = f"{number:0{self.digits}d}"
        return Problem(self.separator.join(digits), self.separator.join(reversed(digits)))


@dataclass(frozen=True)
class AddNumbers:
    """``23 + 58`` → ``81``: all unordered pairs of ``digits``-digit numbers, each in one of its two orders.

    Pairs are unordered so that ``58 + 23`` is not held out while ``23 + 58`` is trained on.

    Attributes:
        digits: digits of each number, 1 to 9.
    """

    name: ClassVar[str] = "add_numbers"
    limits: ClassVar[Mapping[str, tuple[int, int]]] = {"digits": (1, 9)}

    digits: int = 2

    @property
    def _smallest(self) -> int:
        return 0 if self.digits == 1 else 10 ** (self.digits - 1)

    @property
    def space(self) -> int:
        """Number of unordered pairs, those of a number with itself included."""
        numbers = 10**self.digits - self._smallest
        return numbers * (numbers + 1) // 2

    def problem(self, number: int) -> Problem:
        """Returns the pair of that number as ``23 + 58``, and its sum."""
        # Pairs (low <= high) are numbered along the rows of a triangle, so `high` is a triangular root.
        high = (math.isqrt(8 * number + 1) - 1) // 2
        pair = [number - high * (high + 1) // 2 + self._smallest, high + self._smallest]
        if stable_hash(self.name, *pair) % 2:
            pair.reverse()
        return Problem(f"{pair[0]} + {pair[1]}", str(sum(pair)))


GENERATORS: Mapping[str, type[ReverseDigits] | type[AddNumbers]] = {
    generator.name: generator for generator in (ReverseDigits, AddNumbers)
}


class ProceduralRows:
    """Rows of one side of a generator's problem space.

    Args:
        generator: makes the problems.
        side: ``train`` or ``validation``.
        count: problems used; None: the whole side.

    Raises:
        ValueError: the side has fewer problems than ``count``.
    """

    bad_rows = 0

    def __init__(self, generator: Generator, side: str, count: int | None = None) -> None:
        self._generator = generator
        self._order = Permutation(generator.space, stable_hash("held-out", generator.name))
        held_out = max(1, generator.space // HELD_OUT)
        self._start, available = (0, held_out) if side == "validation" else (held_out, generator.space - held_out)
        if count is not None and count > available:
            raise ValueError(f"the {side} side has {available} problems")
        self._count = available if count is None else count

    def __len__(self) -> int:
        return self._count

    def problem(self, index: int) -> Problem:
        """Returns the problem at an index of the fixed order."""
        return self._generator.problem(self._order[self._start + index])


def procedural_rows(name: str, side: str, args: Mapping[str, Any], key: str) -> ProceduralRows:
    """Builds a generator from the config's ``args``: its own fields, and ``count``.

    Args:
        key: config path of the taskset, for messages.

    Raises:
        ConfigError: an unknown argument, a wrong type, a value out of bounds.
    """
    kind = GENERATORS[name]
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}
    for arg, value in args.items():
        path = f"{key}.args.{arg}"
        if arg not in fields and arg != "count":
            raise ConfigError(f"{path}: no such argument of {name}; {nearest(arg, [*fields, 'count'], 'there are')}")
        wanted = int if arg == "count" else type(fields[arg])
        if type(value) is not wanted:
            raise ConfigError(f"{path}={value!r}: must be {wanted.__name__}, not {type(value).__name__}")
        low, high = kind.limits.get(arg, (1, sys.maxsize))
        if wanted is int and not low <= value <= high:
            raise ConfigError(f"{path}={value}: must be {low} to {high}")
    generator = kind(**{arg: value for arg, value in args.items() if arg != "count"})
    try:
        return ProceduralRows(generator, side, args.get("count"))
    except ValueError as error:
        raise ConfigError(f"{key}.args.count={args['count']}: {error}") from error
