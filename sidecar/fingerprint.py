"""Fingerprint of a model: which one some weights are."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sidecar.checksum import checksum
from sidecar.stored import StoredTensor, Tensor

_KIND = "crc32"
"""Of checksum: runs have written fingerprints of it."""


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Returns a hash of the tensors' names, shapes, dtypes and checksums, 16 hexadecimal digits. In which files they
    are, and in what order, does not count.

    All of their bytes do: two models of one fingerprint differ in a tensor by a coincidence of one in four thousand
    million, or because somebody has made one to, which is not defended against. Tensors in files are read one after
    the other, at 1 to 4 GB/s, and once in a process: after that files of the same size and time of
    change are taken for the same.

    Args:
        tensors: by Hugging Face name.

    Raises:
        DamagedFileError: a file cannot be read, or a tensor does not have its checksum.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {_identity(tensors[name])} ".encode())
    return digest.hexdigest()[:16]


def _identity(tensor: Tensor) -> str:
    if not isinstance(tensor, StoredTensor):
        return f"{list(tensor.shape)} {tensor.dtype} {checksum(tensor, _KIND)}"
    stored = replace(tensor, dtype=None)
    try:
        status = tensor.file.stat()
    except OSError:
        return _identity(np.asarray(stored))  # says what is wrong with the file
    return _of_stored(stored, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.cache
def _of_stored(stored: StoredTensor, *_: int) -> str:
    return _identity(np.asarray(stored))
