"""Checksums of arrays, against zlib's and what the specification of XXH3 gives."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors.numpy import save_file

from sidecar.checksum import checksum
from sidecar.stored import CHECKSUMS, WEIGHTS, DamagedFileError, every_tensor

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("array", [ARRAY, ARRAY.T, ARRAY[:, 1], ARRAY.astype(np.int16)])
def test_it_is_of_the_bytes_in_order_of_c(array: np.ndarray) -> None:
    data = array.tobytes()
    assert checksum(array) == checksum(array, "xxh3:0") == f"xxh3:{xxhash.xxh3_64_intdigest(data):016x}"
    assert checksum(array, "crc32:0") == f"crc32:{zlib.crc32(data):08x}"


def test_of_no_bytes_it_is_what_the_specification_says() -> None:
    assert checksum(np.zeros((0, 3), np.float32)) == "xxh3:2d06800538d394c2"


def test_a_kind_that_nobody_knows_is_compared_with_the_usual() -> None:
    assert checksum(ARRAY, "md5:0") == checksum(ARRAY)


def test_a_file_of_an_earlier_program_is_checked_by_its_own_sums(tmp_path: Path) -> None:
    good, wrong = f"crc32:{zlib.crc32(ARRAY.tobytes()):08x}", "crc32:00000000"
    for sum_of_one in (good, wrong):
        save_file({"one": ARRAY}, tmp_path / WEIGHTS, metadata={CHECKSUMS: json.dumps({"one": sum_of_one})})
        stored = every_tensor(tmp_path)["one"]
        if sum_of_one == good:
            np.testing.assert_array_equal(np.asarray(stored), ARRAY)
        else:
            with pytest.raises(DamagedFileError, match=f"the checksum of one is not {wrong}"):
                np.asarray(stored)
