"""Tensors in the safetensors files of a model's directory, each read when it is asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy learns the name bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

from sidecar.checksum import checksum

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CHECKSUMS = "rljax_checksums"
"""Entry of a file's header that has the checksums of its tensors."""

_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number by its name in safetensors' headers; those of other floats are one byte."""


class DamagedFileError(ValueError):
    """A file of a model cannot be read, or does not hold what was written. One line: what, where, what to do."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. Whoever makes an array of it (`numpy.asarray`) has it read; nothing keeps what was read.

    Attributes:
        file: a safetensors file.
        name: of the tensor in it.
        shape: of the tensor.
        checksum: of its bytes; None: unknown.
        dtype: that it is read as; None: as it is stored.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    checksum: str | None = None
    dtype: np.dtype | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes as it is stored; of the file the header alone is read."""
        with safe_open(self.file, framework="numpy") as opened:
            return self.size * _WIDTHS.get(opened.get_slice(self.name).get_dtype(), 1)

    def astype(self, dtype: Any) -> StoredTensor:
        """Returns the tensor, to be read as another dtype."""
        return replace(self, dtype=np.dtype(dtype))

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Reads the tensor, and returns some of its rows.

        Raises:
            DamagedFileError: as `__array__`.
        """
        return np.asarray(self)[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Reads the tensor: a new array at every call.

        Raises:
            DamagedFileError: the file cannot be read, or the tensor does not have its checksum.
        """
        del copy
        try:
            # Opened anew: what a mapped file has shown stays in memory until it is closed.
            with safe_open(self.file, framework="numpy") as opened:
                array: np.ndarray = opened.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise DamagedFileError(f"{self.file} is damaged or incomplete ({error}); fetch it again") from None
        if self.checksum is not None and checksum(array, self.checksum) != self.checksum:
            raise DamagedFileError(
                f"{self.file} is damaged: the checksum of {self.name} is not {self.checksum}; put a copy in its place, "
                f"or remove {self.file.parent} and make it again the way it was made"
            )
        return array.astype(dtype or self.dtype or array.dtype, copy=False)


Tensor = np.ndarray | StoredTensor
"""Array, or anything with a shape that becomes one on the host."""


def every_tensor(path: Path) -> dict[str, StoredTensor]:
    """Finds all tensors of a model directory, by the names that they have there. None is read but when it is used.

    Raises:
        ValueError: a file is missing or damaged.
    """
    path, found = Path(path), dict[str, StoredTensor]()
    for file in _weight_files(path):
        try:
            found |= _tensors_of(file)
        except FileNotFoundError:
            raise ValueError(f"{path}: the weight file {file.name} is missing") from None
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged or incomplete ({error}); fetch it again") from None
    return found


def _tensors_of(file: Path) -> dict[str, StoredTensor]:
    with safe_open(file, framework="numpy") as opened:
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        written = (opened.metadata() or {}).get(CHECKSUMS, "{}")  # a file of others has none
    try:
        checksums = dict(json.loads(written))
    except (ValueError, TypeError):
        raise ValueError(f"{file} is damaged: its checksums cannot be read; put a copy in its place") from None
    if lost := sorted(checksums.keys() - shapes.keys()):
        raise ValueError(
            f"{file} is damaged: it has a checksum of {lost[0]}, and no such tensor; put a copy in its place"
        )
    return {name: StoredTensor(file, name, shape, checksums.get(name)) for name, shape in shapes.items()}


def _weight_files(path: Path) -> list[Path]:
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    if (path / INDEX).exists():
        try:
            places = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
            return [path / name for name in sorted(set(places.values()))]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path / INDEX} is no index of safetensors files; fetch it again") from None
    raise ValueError(f"{path} has neither {WEIGHTS} nor {INDEX}; only safetensors weights are read")
