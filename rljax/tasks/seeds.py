"""Seeds that depend on names and positions alone, never on the process that asks (promise P11)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import blake2b

from rljax.trajectory import TaskId

SEED_BITS = 63

SAMPLED = 16
"""Places that a fingerprint looks at."""


def stable_hash(*parts: int | str | float | None) -> int:
    """Hashes plain values to a non-negative integer of `SEED_BITS` bits.

    The same in every process, on every machine and for every ``PYTHONHASHSEED``: BLAKE2b of the parts as JSON, which
    keeps ``(1, "1")`` and ``("1", 1)`` apart.

    >>> stable_hash("reverse_digits", 0, 3)
    8294476163236382064

    Raises:
        TypeError: a part is no plain value.
    """
    digest = blake2b(json.dumps(parts, separators=(",", ":")).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


def environment_seed(run_seed: int, task: TaskId) -> int:
    """Seed of a task's environment, the same for every member of its group."""
    return stable_hash(run_seed, task.taskset, task.epoch, task.index)


def fingerprint(size: int, content: Callable[[int], Iterable[int | str | float | None]]) -> str:
    """Tells a numbered collection from another by its size and by what `SAMPLED` places at equal distances hold."""
    places = sorted({i * (size - 1) // (SAMPLED - 1) for i in range(SAMPLED)})
    return f"{stable_hash(size, *(part for place in places for part in content(place))):016x}"
