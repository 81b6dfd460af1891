"""Shuffles positions without storing the order."""

from __future__ import annotations

from rljax.tasks.seeds import stable_hash

_ROUNDS = 6


class Permutation:
    """Seeded bijection of ``range(size)``: a Feistel network over the next power of four, walked back into range.

    Any position is found by itself, so that an epoch over a billion tasks needs no list and resumes anywhere.
    Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (2002), the cycle-walking construction.

    Args:
        size: number of positions, at least 1.
        seed: names the order; different seeds give unrelated orders.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} positions")
        self._size = size
        self._seed = seed
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: int) -> int:
        """Returns the value at a position, both in ``[0, size)``; fewer than four rounds of the network on average.

        Raises:
            IndexError: the position is out of range.
        """
        if not 0 <= position < self._size:
            raise IndexError(f"position {position} of {self._size}")
        value = self._encrypt(position)
        while value >= self._size:
            value = self._encrypt(value)
        return value

    def _encrypt(self, value: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = value >> self._half_bits, value & mask
        for step in range(_ROUNDS):
            left, right = right, left ^ (stable_hash(self._seed, step, right) & mask)
        return left << self._half_bits | right
