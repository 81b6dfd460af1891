"""Publishes versions of the weights without a disk: in this process's memory, or in the object store of a Ray cluster.

Both are lost with the learner's process; it publishes again when it is restarted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sidecar.channels.versions import (
    PublishedVersion,
    VersionError,
    VersionGoneError,
    checked,
    gone,
    parse_manifest,
    read_version,
)
from sidecar.errors import first_line

NAMESPACE = "rljax-weights"
"""Ray namespace of the weight stores: whoever knows the name of one finds it from every job of the cluster."""
RAY_SECONDS = 300.0
"""Seconds in which Ray must hand over a version, or any answer of a weight store."""

_kept: dict[str, PublishedVersion] = {}
_last: dict[str, PublishedVersion] = {}
"""The version that was read last, by the directory that its own lies in."""


def keep(address: str, published: PublishedVersion) -> None:
    """Makes a version readable under ``address`` in this process. Copies no arrays: nobody may write to them now."""
    _kept[address] = published


def drop(address: str) -> None:
    """Withdraws a version; no error if it is not there. A reader that has it keeps its arrays."""
    _kept.pop(address, None)


def read_memory(address: str) -> PublishedVersion:
    """Returns a version that this process keeps, checked against its manifest: somebody may have written to its arrays.
    Those without checksums never left an accelerator, where nobody can.

    Raises:
        VersionGoneError: this process keeps no such version.
        VersionError: a tensor is not what the manifest says.
    """
    published = _kept.get(address)
    if published is None:
        raise VersionGoneError(
            f"{address} is not in this process: withdrawn, or lost with the learner that kept it; a learner in another "
            "process needs sync_method=checkpoint or nccl"
        )
    checksums = any(tensor.checksum for tensor in published.manifest.tensors.values())
    return checked(published, address) if checksums else published


def read_files(path: str) -> PublishedVersion:
    """Reads a version from its directory, `read_version`; where this process keeps it under that path, as it has it.

    A version that others will be written against is kept on the host until the next is read, which then is what has
    changed alone. Where what is kept does not lead to what the manifest says, the version is read from its files alone.

    Raises:
        VersionGoneError, VersionError: as `read_version`.
    """
    if (kept := _kept.get(path)) is not None:
        return kept
    root = str(Path(path).absolute().parent)
    held = _last.get(root)
    try:
        published = read_version(path, held)
    except VersionGoneError:
        raise
    except VersionError:
        if held is None:
            raise
        published = read_version(path)
    _last.clear()  # of one run alone: what one before it left is let go
    if published.manifest.followed:
        _last[root] = published
    return published


class WeightStore:
    """A Ray actor that holds the references of the versions that a learner keeps in the object store."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Any]] = {}

    def keep(self, version: str, references: list[Any]) -> None:
        """Holds references to the manifest and the parts, in a list so that Ray does not fetch what they refer to."""
        self._kept[version] = references

    def drop(self, version: str) -> None:
        """Drops the references; the store frees the version once no engine reads it any more."""
        self._kept.pop(version, None)

    def clear(self) -> None:
        """Drops all references."""
        self._kept.clear()

    def find(self, version: str) -> list[Any]:
        """Returns the references; an empty list if the version is not here."""
        return self._kept.get(version, [])


def packed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns tensors as plain data: Ray moves flat bytes without a copy, but not numpy's foreign dtypes."""
    return {n: np.ascontiguousarray(t).reshape(-1).view(np.uint8) for n, t in tensors.items()}


def unpacked(written: str, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> PublishedVersion:
    """Returns the version of a manifest's text and the parts that `packed` made into plain data, without a copy.

    Raises:
        VersionError: there is no such tensor, or not as many bytes as the manifest says.
    """
    manifest = parse_manifest(written, where)
    plain = {name: flat for part in parts for name, flat in part.items()}
    tensors = {}
    for name, info in manifest.tensors.items():
        try:
            tensors[name] = plain[name].view(np.dtype(info.dtype)).reshape(info.shape)
        except (KeyError, ValueError) as error:
            raise VersionError(f"{where}: tensor {name} does not fit its manifest; publish it again") from error
    return PublishedVersion(manifest, tensors)


def read_ray(address: str) -> PublishedVersion:
    """Reads ``ray:STORE/v<version>-<lineage>`` from the object store; on the learner's node without a copy.

    Raises:
        VersionGoneError: the weight store, the version or its publisher is gone.
        VersionError: Ray did not hand it over, or a tensor is not what the manifest says.
    """
    import ray

    if not ray.is_initialized():
        # not left to Ray, which would start a cluster of its own
        raise VersionError(f"{address} lies in a Ray cluster, and this process is in none; use sync_method=checkpoint")
    store, _, version = address.removeprefix("ray:").partition("/")
    try:
        found: list[Any] = ray.get(ray.get_actor(store, namespace=NAMESPACE).find.remote(version), timeout=RAY_SECONDS)
        content = ray.get(found, timeout=RAY_SECONDS)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
        content = list[Any]()
    except ray.exceptions.RayError as error:
        raise VersionError(f"{address} was not handed over by Ray: {first_line(error)}; look at the cluster") from error
    if not content:
        raise VersionGoneError(gone(address))
    return checked(unpacked(content[0], content[1:], address), address)
