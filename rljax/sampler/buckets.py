"""Bucket sizes that batches and lengths are rounded up to, so that a bounded number of programs is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_SHORTEST = 64


def batch_buckets(slots: int) -> tuple[int, ...]:
    """Returns the sizes of the decoded batch: 1, 8, 32, 128 and so on, and `slots` itself."""
    return _powers(1, slots, 4)[:1] + tuple(size for size in _powers(8, slots, 4) if size > 1)


def prefill_buckets(slots: int) -> tuple[int, ...]:
    """Returns the numbers of rows prefilled at once: 1, 4, 16, 64 and so on."""
    return _powers(1, slots, 4)


def cache_lengths(max_length: int) -> tuple[int, ...]:
    """Returns the lengths of the cache: doubling from 64, and `max_length` itself."""
    return _powers(_SHORTEST, max_length, 2)


def prompt_lengths(max_length: int) -> tuple[int, ...]:
    """Returns the lengths that prompts are padded to: 16, 24, 32, 48, 64, 96 and so on, and `max_length` itself."""
    powers = _powers(16, max_length, 2)
    return tuple(sorted({*powers, *(size * 3 // 2 for size in powers if size * 3 // 2 < max_length)}))


def round_up(size: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that holds `size`; the largest where none does."""
    return next((bucket for bucket in buckets if bucket >= size), buckets[-1])


def split(count: int, buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cuts `count` rows into chunks: yields (rows, bucket), at least half of every bucket being used."""
    while count:
        bucket = round_up(count, buckets)
        if count * 2 < bucket:
            bucket = max(b for b in buckets if b <= count)
        rows = min(count, bucket)
        yield rows, bucket
        count -= rows


def _powers(first: int, last: int, factor: int) -> tuple[int, ...]:
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return (*sizes, last)
