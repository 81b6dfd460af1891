"""A published version of the weights: what its manifest says, where it lies, and how it is received, without JAX.

A version is a directory ``v<version>-<lineage>``: an Orbax checkpoint of ``{hugging_face_name: array}`` (on disk OCDBT
and zarr3, which tensorstore reads by itself), of several hosts one of each, with a ``manifest.json`` that says what
must be in it. One that was written as what has changed since the version before has that version's directory beside it,
and the changes in a safetensors file. Versions that travel without files have an address instead of a path; `receive`
takes either.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  (numpy learns the name bfloat16)
import numpy as np

from sidecar.checksum import checksum
from sidecar.errors import first_line

MANIFEST_NAME = "manifest.json"
CHANGES_NAME = "changes.safetensors"
"""File of a version that was written as what has changed; see `sidecar.channels.changes.packed_changes`."""
MANIFEST_FORMAT, MANIFEST_FORMAT_OF_CHANGES = 1, 2
ARRAYS = "state"
"""Directory of the arrays within that of a version, and their name in its Orbax checkpoint."""


class VersionError(RuntimeError):
    """A published version is missing, incomplete, or not what its manifest says. One line: what, where, what to do."""


class VersionDamagedError(VersionError):
    """A version that was read is not what its manifest says."""


class VersionGoneError(VersionError):
    """The version is not there: never published, withdrawn, or gone with the process that held it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Manifest entry of one tensor: shape, numpy dtype name, checksum of its bytes in C order; the checksum is empty
    where the bytes never pass a CPU. Of files ``part`` is the number of the host that has written it.
    """

    shape: tuple[int, ...]
    dtype: str
    checksum: str
    part: int = 0


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """Base and scale of a version that holds an adapter alone.

    Attributes:
        base: fingerprint of the frozen weights; see `sidecar.fingerprint`.
        base_dtype: that the learner computes with them in, ``bf16`` or ``fp32``.
        scale: by which the product of the two factors counts.
    """

    base: str
    base_dtype: str
    scale: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of a version.

    Attributes:
        version: batches that these weights have seen.
        lineage: life of the learner that published them.
        model: name of the model, for people.
        dtype: ``bf16`` or ``fp32``.
        tensors: every tensor by its Hugging Face name; of an adapter its factors; see `sidecar.adapters`.
        adapter: what they change; None where they are a whole model.
        base: version and lineage of the version against which only what has changed was written; None where all was.
        followed: whether versions after this one may be written against it, so that it is worth keeping what was read.
    """

    version: int
    lineage: int
    model: str
    dtype: str
    tensors: Mapping[str, TensorInfo]
    adapter: AdapterInfo | None = None
    base: tuple[int, int] | None = None
    followed: bool = False

    @property
    def identity(self) -> tuple[int, int]:
        """Version and lineage."""
        return self.version, self.lineage

    def to_json(self) -> str:
        """Returns the text of ``manifest.json``."""
        written = MANIFEST_FORMAT if self.base is None else MANIFEST_FORMAT_OF_CHANGES
        return json.dumps({"format": written, **asdict(self)}, indent=1)


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that was read whole and matches its manifest."""

    manifest: Manifest
    tensors: Mapping[str, np.ndarray]


class Receiver(Protocol):
    """The engine's end of a channel: what `rljax.weights.publisher.Publisher` is to the learner's. Any thread."""

    def __call__(self, path: str, /) -> PublishedVersion:
        """Reads the version that a `WeightUpdate` names, whole and checked.

        Raises:
            VersionGoneError: it is not there.
            VersionError: it is not what its manifest says.
        """
        ...


CHANNELS: Mapping[str, str] = {
    "memory": "sidecar.channels.memory:read_memory",
    "ray": "sidecar.channels.memory:read_ray",
    "nccl": "sidecar.channels.nccl:read_transfer",
}
"""`Receiver` of each kind of address, by its scheme (the part before the first colon)."""
FILES = "sidecar.channels.memory:read_files"
"""`Receiver` of a directory."""


def is_address(path: str) -> bool:
    """Returns whether the path of a `WeightUpdate` is an address and not a directory."""
    return path.partition(":")[0] in CHANNELS


def receive(path: str) -> PublishedVersion:
    """Reads a version through any channel, a `Receiver`: the form of the path or address says which.

    Raises:
        VersionGoneError: the version is not there.
        VersionError: it is not what its manifest says.
    """
    module, _, function = (CHANNELS[path.partition(":")[0]] if is_address(path) else FILES).partition(":")
    read: Receiver = getattr(importlib.import_module(module), function)
    return read(path)


def version_directory(root: Path, version: int, lineage: int) -> Path:
    """Returns the directory of a version below the run's ``weights`` directory."""
    return root / f"v{version}-{lineage}"


def part_directory(version: Path, part: int) -> Path:
    """Returns the directory of what one host has written of a version: below its own, but of host 0, whose that is."""
    return version / f"part{part}" if part else version


def array_spec(directory: Path, name: str) -> dict[str, Any]:
    """Returns what tensorstore opens an array of a version by, in its directory or that of a part."""
    kvstore = {"driver": "ocdbt", "base": f"file://{directory / ARRAYS}/", "path": f"{name}/"}
    return {"driver": "zarr3", "kvstore": kvstore}


def read_manifest(path: str | Path) -> Manifest:
    """Reads the manifest of the version in directory `path`.

    Raises:
        VersionError: there is none, or it is no manifest of this format.
    """
    file = Path(path) / MANIFEST_NAME
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise VersionGoneError(gone(str(path))) from None
    except (OSError, ValueError) as error:
        raise VersionError(f"{file} cannot be read: {first_line(error)}") from error
    return parse_manifest(text, str(file))


def parse_manifest(text: str, where: str) -> Manifest:
    """Parses what `Manifest.to_json` wrote; ``where`` is named in errors.

    Raises:
        VersionError: it is no manifest of this format.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise VersionError(f"{where} cannot be read: {first_line(error)}") from error
    formats = MANIFEST_FORMAT, MANIFEST_FORMAT_OF_CHANGES
    if not isinstance(content, dict) or content.pop("format", None) not in formats:
        raise VersionError(f"{where} is no manifest of a format that this program reads; publish the version again")
    try:
        return _manifest(content)
    except (KeyError, TypeError, ValueError) as error:
        raise VersionError(f"{where} is damaged ({first_line(error)}); publish the version again") from error


def checked(published: PublishedVersion, where: str) -> PublishedVersion:
    """Returns the version itself if every tensor is what the manifest says; ``where`` is named in errors.

    Raises:
        VersionDamagedError: a tensor is not; the line names the first.
    """
    for name, expected in published.manifest.tensors.items():
        _check(where, name, published.tensors[name], expected)
    return published


def check_identity(published: PublishedVersion, path: str, version: int, lineage: int) -> None:
    """Checks that `path` held the version and lineage that were asked for.

    Raises:
        VersionError: the path holds another version.
    """
    manifest = published.manifest
    if (manifest.version, manifest.lineage) != (version, lineage):
        raise VersionError(f"{path} holds version {manifest.version} of lineage {manifest.lineage}")


def tensor_info(content: Mapping[str, Any]) -> TensorInfo:
    """Returns the entry of a tensor of what JSON makes of it.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    shape, part = tuple(int(n) for n in content["shape"]), int(content.get("part", 0))
    return TensorInfo(shape, str(np.dtype(content["dtype"])), str(content["checksum"]), part)


def _manifest(content: Mapping[str, Any]) -> Manifest:
    tensors = {name: tensor_info(info) for name, info in content["tensors"].items()}
    adapter = AdapterInfo(**content["adapter"]) if content.get("adapter") else None
    base: tuple[int, int] | None = None
    if content.get("base") is not None:
        version, lineage = content["base"]
        base = int(version), int(lineage)
    head = int(content["version"]), int(content["lineage"]), content["model"], content["dtype"]
    return Manifest(*head, tensors, adapter, base, bool(content.get("followed", False)))


def _check(path: str, name: str, array: np.ndarray, expected: TensorInfo) -> None:
    found = (tuple(array.shape), str(array.dtype))
    if found != (expected.shape, expected.dtype):
        raise VersionDamagedError(
            f"{path}: tensor {name} is {found[1]} {list(found[0])}, the manifest says {expected.dtype} "
            f"{list(expected.shape)}; publish the version again"
        )
    actual = checksum(array, expected.checksum)
    if actual != expected.checksum:
        raise VersionDamagedError(
            f"{path}: tensor {name} is corrupted: its checksum is {actual}, the manifest says {expected.checksum}; "
            "publish the version again"
        )


def gone(where: str) -> str:
    """Returns the message for a version that is not there."""
    last = "on a disk that this host does not share" if where.startswith("/") else "lost with what held it"
    return (
        f"{where} is not there: never published, or withdrawn in the meantime, or {last}; load a version that the "
        "ledger announces"
    )
