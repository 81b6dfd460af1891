"""What has changed of an array leads from the one before to the one after, bit by bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sidecar.channels import changes
from sidecar.channels.changes import (
    Changes,
    changed_values,
    changes_of,
    packed_changes,
    unpacked_changes,
    with_changes,
)

BF16 = ml_dtypes.bfloat16


def test_gaps_by_hand() -> None:
    """Values 0, 3, 258 and 1000 of 1024 change: gaps 0, 3, 255 and 742 = 2 · 255 + 232."""
    before = np.zeros((32, 32), BF16)
    after = before.copy()
    after.reshape(-1)[[0, 3, 258, 1000]] = np.array([1.0, -2.0, np.inf, -0.0], BF16)
    found = changes_of(before, after)
    assert found.gaps.tolist() == [0, 3, 255, 0, 255, 255, 232]
    assert found.values.tolist() == [0x3F80, 0xC000, 0x7F80, 0x8000]  # -0.0 is another value than 0.0
    assert found.nbytes == 7 + 8
    assert with_changes(before, found).tobytes() == after.tobytes()
    assert changed_values(before, after) == 4


@pytest.mark.parametrize("block", [1, 7, 256, 2**20])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 1.0])
def test_any_bits_are_exact(monkeypatch: pytest.MonkeyPatch, block: int, dtype: type, share: float) -> None:
    """Random bits have NaN of all kinds, infinities, zeros of both signs, and numbers below the least normal one."""
    monkeypatch.setattr(changes, "_BLOCK", block)
    rng = np.random.default_rng([block, int(share * 1000)])
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    for shape in ((), (0, 4), (1,), (3, 5, 7), (997,)):
        before = np.asarray(rng.integers(0, 2 ** (8 * bits.itemsize), shape, dtype=bits)).view(dtype)
        other = np.asarray(rng.integers(0, 2 ** (8 * bits.itemsize), shape, dtype=bits)).view(dtype)
        after = np.where(rng.random(shape) < share, other.view(bits), before.view(bits)).astype(bits).view(dtype)
        kept = before.copy()
        (name, found), *_ = unpacked_changes(packed_changes({"a.gaps": changes_of(before, after)}))
        made = with_changes(before, found)
        assert (name, made.shape, made.dtype) == ("a.gaps", shape, dtype)
        assert made.tobytes() == after.tobytes()
        assert before.tobytes() == kept.tobytes()
        assert found.values.size == changed_values(before, after)


def test_arrays_that_are_not_in_order() -> None:
    before = np.arange(12, dtype=np.float32).reshape(3, 4)
    after = before + np.eye(3, 4, dtype=np.float32)
    made = with_changes(before.T, changes_of(before.T, after.T))
    np.testing.assert_array_equal(made, after.T)


@pytest.mark.parametrize(
    "wrong",
    [
        Changes(np.array([12], np.uint8), np.array([1], np.uint32)),
        Changes(np.array([1, 1], np.uint8), np.array([1], np.uint32)),
        Changes(np.array([1], np.uint8), np.array([1, 2, 3], np.uint32)),
        Changes(np.array([1, 255], np.uint8), np.array([1, 2], np.uint32)),
        Changes(np.array([1], np.uint8), np.array([1], np.uint16)),
    ],
    ids=["beyond the end", "a value too few", "values too many", "a gap without an end", "of another dtype"],
)
def test_changes_of_another_array_are_refused(wrong: Changes) -> None:
    with pytest.raises((ValueError, IndexError)):
        with_changes(np.zeros(12, np.float32), wrong)
