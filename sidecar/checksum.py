"""Checksums of arrays: of versions of the weights, checkpoints and model files."""

from __future__ import annotations

import zlib

import numpy as np
import xxhash


def checksum(array: np.ndarray, like: str = "xxh3") -> str:
    """Returns the XXH3 (64 bits) of the array's bytes in C order, as ``xxh3:`` and 16 hexadecimal digits: as fast as
    memory is.

    Args:
        array: of any type and order.
        like: the checksum that the result is to be compared with. Files of earlier programs have a CRC-32, as
            ``crc32:`` and 8 digits.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    if like.startswith("crc32"):
        return f"crc32:{zlib.crc32(data):08x}"
    return f"xxh3:{xxhash.xxh3_64_hexdigest(data)}"
