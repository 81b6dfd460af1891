"""Reads what a compiled program sends between its devices, from XLA's text of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*->.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?)\s([a-z][a-z0-9\-]*)\((.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:to_apply|calls|branch_computations|called_computations)=\{?((?:%[\w.\-]+(?:, )?)+)")
_PASSED_ON = ("copy", "convert", "bitcast", "copy-start", "copy-done")


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: one of `KINDS`.
        arrays: dtype and shape of each array that a device ends with; of a reduce-scatter, and of an exchange
            of rows whose numbers are data, begins with.
        times: runs of it in one of the program: counts of the loops around it multiplied. A loop whose count is data,
            such as the one over microbatches, counts once.
    """

    kind: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    times: int = 1

    @property
    def size(self) -> int:
        """Bytes of those arrays."""
        return sum(math.prod(shape) * _BYTES.get(dtype, 4) for dtype, shape in self.arrays)


@dataclass(frozen=True)
class _Instruction:
    name: str
    result: str
    operation: str
    rest: str

    @property
    def operands(self) -> list[str]:
        return _NAME.findall(self.rest.partition("), ")[0])


def collectives(text: str) -> list[Collective]:
    """Returns the collectives of an optimised program, in the order of its text.

    Args:
        text: as `jax.stages.Compiled.as_text` returns it. A collective that a TPU cuts into a chain of fused
            instructions, some of them in loops, is there several times, with one channel; it is returned once.
    """
    entry, computations = _computations(text)
    times = _times(entry, computations)
    results = {one.name: one.result for each in computations.values() for one in each}
    found: dict[str, Collective] = {}
    for name, instructions in computations.items():
        for one in instructions:
            kind = one.operation.removesuffix("-start")
            if kind in KINDS:
                chained = re.search(r"(channel_id=\d+).*chain_id=", one.rest)
                read = Collective(kind, _moved(kind, one, results), times.get(name, 1))
                known = found.setdefault(chained[1] if chained else one.name, read)
                if known.times > read.times:
                    found[chained[1] if chained else one.name] = read
    return list(found.values())


def by_kind(found: Iterable[Collective]) -> dict[str, tuple[int, int]]:
    """Returns of each kind how many run, and their bytes."""
    found = list(found)
    kinds = {kind: [one for one in found if one.kind == kind] for kind in KINDS}
    return {
        kind: (sum(one.times for one in each), sum(one.times * one.size for one in each))
        for kind, each in kinds.items()
        if each
    }


def _moved(kind: str, one: _Instruction, results: dict[str, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    before = [array for operand in one.operands for array in _arrays(results.get(operand, ""))]
    after = list(_arrays(one.result))
    if kind == "ragged-all-to-all":
        return tuple(before[:1])  # what it has to send; what it gets has room for far more
    count = len(one.operands)
    after = after[count : 2 * count] or after  # what starts one returns its operands too
    return tuple(before if kind == "reduce-scatter" else after)


def _arrays(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for dtype, sizes in _ARRAY.findall(text):
        yield dtype, tuple(int(size) for size in sizes.split(",") if size)


def _computations(text: str) -> tuple[str, dict[str, list[_Instruction]]]:
    entry, current = "", ""
    computations: dict[str, list[_Instruction]] = {}
    for line in text.splitlines():
        if begun := _COMPUTATION.match(line):
            current = begun[2]
            computations[current] = []
            entry = current if begun[1] else entry
        elif current and (read := _INSTRUCTION.match(line)):
            computations[current].append(_Instruction(*read.groups()))
    return entry, computations


def _times(entry: str, computations: dict[str, list[_Instruction]]) -> dict[str, int]:
    """Returns how often each computation that is reached runs, at most, for one run of the entry."""
    found: dict[str, int] = {}
    left = [(entry, 1)]
    while left:
        name, times = left.pop()
        if found.get(name, 0) >= times:
            continue
        found[name] = times
        for one in computations.get(name, ()):
            loop = re.search(r"condition=%([\w.\-]+), body=%([\w.\-]+)", one.rest)
            if loop:
                left.append((loop[2], times * _count(one, computations[name], computations.get(loop[1], ()))))
            for called in _CALLED.findall(one.rest):
                left.extend((each, times) for each in _NAME.findall(called))
    return found


def _count(loop: _Instruction, around: Sequence[_Instruction], condition: Sequence[_Instruction]) -> int:
    """Returns how often a loop runs that counts up to a constant, its own or one that it is given; 1 for others."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(known[1])
    inside, outside = ({one.name: one for one in each} for each in (condition, around))

    def constant(name: str, known: dict[str, _Instruction]) -> int | None:
        one = known.get(name)
        while one is not None and one.operation in _PASSED_ON:
            one = known.get(one.operands[0])
        if one is None:
            return None
        if one.operation == "constant":
            return int(value[0]) if (value := re.match(r"\d+", one.rest)) else None
        given = outside.get(loop.operands[0])
        if one.operation == "get-tuple-element" and known is inside and given and given.operation == "tuple":
            return constant(given.operands[int(one.rest.partition("index=")[2].split(",")[0])], outside)
        return None

    compared = [o for one in condition if "compare" in one.operation + one.rest for o in one.operands]
    return max((bound for name in compared if (bound := constant(name, inside))), default=1)
