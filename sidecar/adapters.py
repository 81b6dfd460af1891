"""Versions that hold an adapter alone: two factors of each matrix, on the frozen weights that an engine has itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sidecar.channels.versions import AdapterInfo, PublishedVersion, VersionError
from sidecar.fingerprint import fingerprint
from sidecar.stored import StoredTensor, Tensor

FIRST, SECOND = "lora_A.weight", "lora_B.weight"
"""Ends of the names of a matrix's factors, after that of its module; they are kept [out, in], as PEFT keeps them."""
EVERY = "*"
"""Stands for the layer in the name of a tensor that has the factors of all layers."""
_MATRIX = ".weight"
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True)
class MergedTensor:
    """A tensor of the base with an adapter merged into it, made when it is asked for (`numpy.asarray`), as a
    `StoredTensor` is read.

    Attributes:
        base: of the frozen model, [out, in].
        a: PEFT's lora_A, [rank, in].
        b: PEFT's lora_B, [out, rank].
        scale: of the change.
        dtype: that it is made as.
    """

    base: Tensor
    a: np.ndarray
    b: np.ndarray
    scale: float
    dtype: Any = np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(self.base.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def astype(self, dtype: Any) -> MergedTensor:
        """Returns the tensor, to be made as another dtype."""
        return MergedTensor(self.base, self.a, self.b, self.scale, np.dtype(dtype))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Makes the tensor: a new array at every call."""
        del copy
        change = np.float32(self.scale) * (self.b.astype(np.float32) @ self.a.astype(np.float32))
        made: np.ndarray = np.asarray(self.base).astype(np.float32) + change
        return made.astype(dtype or self.dtype, copy=False)


def by_layer(factors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the factors of each layer by its own name, of those that have all layers in one."""
    return {
        name.replace(EVERY, str(layer)): factor
        for name, stacked in factors.items()
        for layer, factor in enumerate(stacked)
    }


def merged_by_name(base: Mapping[str, Tensor], factors: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Returns a model's tensors by Hugging Face name, those that have factors merged with them when they are used."""
    found: dict[str, Any] = dict(base)
    for name, tensor in base.items():
        a, b = (factors.get(f"{name.removesuffix(_MATRIX)}.{end}") for end in (FIRST, SECOND))
        if a is not None and b is not None:
            found[name] = MergedTensor(tensor, np.asarray(a), np.asarray(b), scale)
    return found


def frozen(adapter: AdapterInfo, stored: Mapping[str, StoredTensor], where: str) -> dict[str, StoredTensor]:
    """Returns the frozen weights of an adapter as its learner computes with them; none is read but when it is used.

    Args:
        adapter: of a version.
        stored: tensors of the engine's model.
        where: names that model in errors.

    Raises:
        VersionError: they are another model's.
        DamagedFileError: a file cannot be read.
    """
    if (found := fingerprint(stored)) != adapter.base:
        raise VersionError(
            f"the version is an adapter of another model (fingerprint {adapter.base}) than that in {where} ({found}); "
            "put the model there that the learner trains"
        )
    return {name: tensor.astype(_DTYPES[adapter.base_dtype]) for name, tensor in stored.items()}


def whole_version(published: PublishedVersion, stored: Mapping[str, StoredTensor], where: str) -> PublishedVersion:
    """Returns a version of all weights: itself, or of an adapter merged into the engine's model, on the host.

    Raises:
        VersionError: it is an adapter of another model than is ``stored``.
        DamagedFileError: a file of the model cannot be read.
    """
    manifest = published.manifest
    if manifest.adapter is None:
        return published
    base, dtype = frozen(manifest.adapter, stored, where), np.dtype(_DTYPES[manifest.dtype])
    merged = merged_by_name(base, by_layer(published.tensors), manifest.adapter.scale)
    tensors = {name: np.asarray(tensor.astype(dtype)) for name, tensor in merged.items()}
    return PublishedVersion(replace(manifest, adapter=None), tensors)
