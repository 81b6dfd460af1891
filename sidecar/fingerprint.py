"""Fingerprint of a model: which one some weights are, by a part of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from sidecar.stored import StoredTensor, Tensor


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Returns a hash of the tensors' names, shapes, dtypes and first rows, 16 hexadecimal digits. In which files they
    are, and in what order, does not count. Of a file the rows alone are read.

    Training changes all rows of a matrix that it changes, so that a model and one trained from it differ. Two models
    that differ in later rows alone do not.

    Args:
        tensors: by Hugging Face name.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        row = tensor.first_row() if isinstance(tensor, StoredTensor) else tensor[:1]
        digest.update(f"{name} {list(tensor.shape)} {row.dtype} ".encode())
        digest.update(np.ascontiguousarray(row).tobytes())
    return digest.hexdigest()[:16]
