"""Arrays of a version on the host: gathered in groups, checked, and told in a manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rljax.observe.parts import CHECKSUM, GATHER, note, part
from sidecar.channels.versions import TensorInfo
from sidecar.checksum import checksum

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
"""numpy's name of a dtype, by its config name."""

GROUP_BYTES = 256 * 2**20
"""Bytes of tensors that are gathered on the host, and written, at once. At least one tensor is, however large."""

Tensors = Mapping[str, Any]
"""By Hugging Face name, what `numpy.asarray` makes an array of. Each is asked for once, in order, and let go: a learner
makes its own layer by layer.
"""


class DtypeError(ValueError):
    """A tensor is not of the type that its version is to have."""


def on_host(tensors: Tensors) -> dict[str, np.ndarray]:
    """Returns the tensors as numpy arrays, made in order."""
    return {name: np.asarray(tensors[name]) for name in tensors}


def gathered(tensors: Tensors, dtype: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields the tensors on the host, in groups of `GROUP_BYTES`.

    Raises:
        DtypeError: a tensor is not of type ``dtype``.
    """
    group: dict[str, np.ndarray] = {}
    size, left, begin = 0, len(tensors), time.time()
    for name in tensors:
        group[name] = np.asarray(tensors[name])
        check_dtypes({name: group[name]}, dtype)
        size, left = size + group[name].nbytes, left - 1
        if size >= GROUP_BYTES or not left:
            note(GATHER, begin)
            yield group
            group, size, begin = {}, 0, time.time()


def infos_of(arrays: Mapping[str, np.ndarray]) -> dict[str, TensorInfo]:
    """Returns what a manifest says of arrays."""
    with part(CHECKSUM), ThreadPoolExecutor() as pool:  # a checksum lets go of the interpreter
        sums = list(pool.map(checksum, arrays.values()))
    return {name: TensorInfo(a.shape, str(a.dtype), s) for (name, a), s in zip(arrays.items(), sums, strict=True)}


def check_dtypes(arrays: Mapping[str, Any], dtype: str) -> None:
    """Checks that every array is of the type that a version says it is of.

    Raises:
        DtypeError: an array is of another type.
    """
    if dtype not in DTYPES:
        raise DtypeError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    for name, array in arrays.items():
        if str(array.dtype) != DTYPES[dtype]:
            raise DtypeError(f"tensor {name} is {array.dtype}, to be published as {dtype}; cast it first")
