from __future__ import annotations

import pytest

from rljax.sampler import buckets


def test_sizes():
    assert buckets.batch_buckets(1) == (1,)
    assert buckets.batch_buckets(4) == (1, 4)
    assert buckets.batch_buckets(8) == (1, 8)
    assert buckets.batch_buckets(64) == (1, 8, 32, 64)
    assert buckets.batch_buckets(256) == (1, 8, 32, 128, 256)
    assert buckets.prefill_buckets(20) == (1, 4, 16, 20)
    assert buckets.cache_lengths(48) == (48,)
    assert buckets.cache_lengths(300) == (64, 128, 256, 300)
    assert buckets.prompt_lengths(100) == (16, 24, 32, 48, 64, 96, 100)
    assert buckets.prompt_lengths(10) == (10,)


def test_round_up():
    assert [buckets.round_up(n, (1, 8, 20)) for n in (0, 1, 2, 8, 9, 20, 21)] == [1, 1, 8, 8, 20, 20, 20]


@pytest.mark.parametrize("sizes", [(1, 4, 16, 64), (1, 4, 16, 20), (1,), (1, 3)])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 20, 37, 64, 129])
def test_split_covers_all_rows_and_wastes_less_than_half(sizes, count):
    chunks = list(buckets.split(count, sizes))
    assert sum(rows for rows, _ in chunks) == count
    assert all(size in sizes and size / 2 <= rows <= size for rows, size in chunks)
