"""Finds what has changed of an array: which of its values, as the gaps between them, and what they are now.

Bits are compared, so that NaN, infinities and -0.0 are values like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

_GAPS, _VALUES = ".gaps", ".values"
_FULL = 255
"""A byte of gaps that another one follows."""
_BLOCK = 2**20
"""Values that are compared, and bytes of gaps that are read, at once: what is made on the way stays small."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed values of an array.

    Attributes:
        gaps: uint8 ``[bytes]``. For each changed value, how much further it lies than the one before, in C order (the
            first: than the array's beginning): as many bytes of 255 as that has whole 255s, and one of what is left.
        values: ``[changed]``, the bits of the new values, as unsigned integers as wide as they are.
    """

    gaps: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.gaps.nbytes + self.values.nbytes


def changed_values(before: np.ndarray, after: np.ndarray) -> int:
    """Returns how many values `changes_of` would find: sooner than it finds them."""
    return int(np.count_nonzero(_bits(before) != _bits(after)))


def changes_of(before: np.ndarray, after: np.ndarray) -> Changes:
    """Returns what has changed from one array to another of the same shape and dtype."""
    old, new = _bits(before), _bits(after)
    gaps, values = [np.zeros(0, np.uint8)], [new[:0]]
    last = 0
    for begin in range(0, new.size, _BLOCK):
        found = np.flatnonzero(old[begin : begin + _BLOCK] != new[begin : begin + _BLOCK])
        if found.size:
            gaps.append(_gap_bytes(np.diff(found, prepend=last - begin)))
            values.append(new[begin + found])
            last = begin + int(found[-1])
    return Changes(np.concatenate(gaps), np.concatenate(values))


def with_changes(before: np.ndarray, changes: Changes) -> np.ndarray:
    """Returns a new array: the one before with what has changed.

    Raises:
        ValueError, IndexError: these are no changes of such an array.
    """
    after = np.array(before, order="C")  # a copy: whoever has the one before may be using it
    bits, values = _bits(after), changes.values
    if values.dtype != bits.dtype:
        raise ValueError(f"its changed values are {values.dtype}, and not {bits.dtype}")
    place, done = 0, 0
    for begin in range(0, changes.gaps.size, _BLOCK):
        gaps = changes.gaps[begin : begin + _BLOCK]
        places = place + np.cumsum(gaps, dtype=np.int64)
        ends = places[gaps != _FULL]
        bits[ends] = values[done : done + ends.size]
        place, done = int(places[-1]), done + ends.size
    if done != values.size:
        raise ValueError(f"{values.size} of its values have changed, at {done} places")
    return after


def packed_changes(changes: Mapping[str, Changes]) -> dict[str, np.ndarray]:
    """Returns changes of arrays by name as plain arrays by name: ``NAME.gaps`` and ``NAME.values``."""
    return {
        name + end: array for name, one in changes.items() for end, array in ((_GAPS, one.gaps), (_VALUES, one.values))
    }


def unpacked_changes(packed: Mapping[str, np.ndarray]) -> Iterator[tuple[str, Changes]]:
    """Yields what `packed_changes` packed.

    Raises:
        KeyError: gaps have no values.
    """
    for key, gaps in packed.items():
        if key.endswith(_GAPS):
            name = key.removesuffix(_GAPS)
            yield name, Changes(gaps, packed[name + _VALUES])


def _bits(array: np.ndarray) -> np.ndarray:
    flat: np.ndarray = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{array.dtype.itemsize}")


def _gap_bytes(gaps: np.ndarray) -> np.ndarray:
    ends = np.cumsum(gaps // _FULL + 1) - 1
    found = np.full(ends[-1] + 1, _FULL, np.uint8)
    found[ends] = gaps % _FULL
    return found
