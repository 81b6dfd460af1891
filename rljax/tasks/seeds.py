"""Derives seeds from names and positions alone, never from the process that asks (promise P11)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import blake2b

from rljax.trajectory import TaskId

SEED_BITS = 63

_JSON = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` makes one at each call

SAMPLED = 16
"""Number of items that a fingerprint covers."""


def stable_hash(*parts: int | str | float | None) -> int:
    """Hashes plain values to a non-negative integer of `SEED_BITS` bits.

    The same in every process, on every machine and for every ``PYTHONHASHSEED``: BLAKE2b of the parts as JSON, which
    keeps ``(1, "1")`` and ``("1", 1)`` apart.

    >>> stable_hash("reverse_digits", 0, 3)
    8294476163236382064

    Raises:
        TypeError: a part is no plain value.
    """
    digest = blake2b(_JSON.encode(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


def environment_seed(run_seed: int, task: TaskId) -> int:
    """Returns the seed of a task's environment, the same for every member of its group."""
    return stable_hash(run_seed, task.taskset, task.epoch, task.index)


def fingerprint(size: int, content: Callable[[int], Iterable[int | str | float | None]]) -> str:
    """Returns the fingerprint of a numbered collection: of its size and contents at `SAMPLED` equally spaced places."""
    places = sorted({i * (size - 1) // (SAMPLED - 1) for i in range(SAMPLED)})
    return f"{stable_hash(size, *(part for place in places for part in content(place))):016x}"
