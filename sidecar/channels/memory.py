"""Publishes versions of the weights without a disk: in this process's memory, or in the object store of a Ray cluster.

Both are lost with the learner's process; it publishes again when it is restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sidecar.channels.chains import read_following
from sidecar.channels.files import Files
from sidecar.channels.versions import (
    Manifest,
    PublishedVersion,
    VersionError,
    VersionGoneError,
    checked,
    gone,
    parse_manifest,
)
from sidecar.errors import first_line

NAMESPACE = "rljax-weights"
"""Ray namespace of the weight stores: whoever knows the name of one finds it from every job of the cluster."""
RAY_SECONDS = 300.0
"""Seconds in which Ray must hand over one version of a chain, or any answer of a weight store."""

_kept: dict[str, PublishedVersion] = {}


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
    """Reads a version from its directory, `read_following`; where this process keeps it under that path, as it has it.

    Raises:
        VersionGoneError, VersionError: as `read_following`.
    """
    kept = _kept.get(path)
    return read_following(Files(), str(Path(path).absolute())) if kept is None else kept


class WeightStore:
    """A Ray actor that holds the manifests of the versions that a learner keeps in the object store, and the references
    of their parts.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, list[Any]]] = {}

    def keep(self, version: str, manifest: str, references: list[Any]) -> None:
        """Holds a manifest's text and references to the parts, in a list so that Ray does not fetch what they refer
        to.
        """
        self._kept[version] = manifest, references

    def drop(self, version: str) -> None:
        """Drops the references; the store frees the version once no engine reads it any more."""
        self._kept.pop(version, None)

    def clear(self) -> None:
        """Drops all references."""
        self._kept.clear()

    def find(self, version: str) -> tuple[str, list[Any]] | None:
        """Returns the manifest's text and the references; None if the version is not here."""
        return self._kept.get(version)


def packed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns tensors as plain data: Ray moves flat bytes without a copy, but not numpy's foreign dtypes."""
    return {n: np.ascontiguousarray(t).reshape(-1).view(np.uint8) for n, t in tensors.items()}


def unpacked(manifest: Manifest, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> dict[str, np.ndarray]:
    """Returns the tensors of the parts that `packed` made into plain data, without a copy.

    Raises:
        VersionError: there is no such tensor, or not as many bytes as the manifest says.
    """
    plain = {name: flat for part in parts for name, flat in part.items()}
    tensors = {}
    for name, info in manifest.tensors.items():
        try:
            tensors[name] = plain[name].view(np.dtype(info.dtype)).reshape(info.shape)
        except (KeyError, ValueError) as error:
            raise VersionError(f"{where}: tensor {name} does not fit its manifest; publish it again") from error
    return tensors


class _Objects:
    """Versions in the object store of the Ray cluster that this process has joined, a `Source`."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Any]] = {}

    def manifest(self, where: str) -> Manifest:
        """See `Source.manifest`."""
        text, self._parts[where] = self._find(where)
        return parse_manifest(text, where)

    def arrays(self, where: str, manifest: Manifest) -> Mapping[str, np.ndarray]:
        """See `Source.arrays`: on the learner's node without a copy."""
        return unpacked(manifest, self._fetch(where), where)

    def changes(self, where: str) -> Mapping[str, np.ndarray]:
        """See `Source.changes`."""
        return {name: array for part in self._fetch(where) for name, array in part.items()}

    def is_there(self, where: str) -> bool:
        """See `Source.is_there`."""
        try:
            self._find(where)
        except VersionGoneError:
            return False
        return True

    def _find(self, where: str) -> tuple[str, list[Any]]:
        store, _, version = where.removeprefix("ray:").partition("/")
        found: tuple[str, list[Any]] | None = self._asked(
            where, lambda ray: ray.get_actor(store, namespace=NAMESPACE).find.remote(version)
        )
        if found is None:
            raise VersionGoneError(gone(where))
        return found

    def _fetch(self, where: str) -> list[Mapping[str, np.ndarray]]:
        parts: list[Mapping[str, np.ndarray]] = self._asked(where, lambda _: self._parts[where])
        return parts

    def _asked(self, where: str, references: Callable[[Any], Any]) -> Any:
        """Returns what references refer to.

        Raises:
            VersionGoneError: that, or the process that kept it, is gone.
            VersionError: Ray does not hand it over.
        """
        import ray

        lost = ValueError, ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
        passing = ray.exceptions.ActorUnavailableError, ray.exceptions.ObjectFetchTimedOutError  # some of these
        try:
            return ray.get(references(ray), timeout=RAY_SECONDS)
        except (*lost, ray.exceptions.RayError) as error:
            if isinstance(error, lost) and not isinstance(error, passing):
                raise VersionGoneError(f"{gone(where)} (Ray: {first_line(error)})") from error
            why = f"{where} was not handed over by Ray: {first_line(error)}; look at the cluster"
            raise VersionError(why) from error


def read_ray(address: str) -> PublishedVersion:
    """Reads ``ray:STORE/v<version>-<lineage>`` from the object store, `read_following`.

    Raises:
        VersionGoneError: the weight store, the version or its publisher is gone.
        VersionError: Ray did not hand it over, or a tensor is not what the manifest says.
    """
    import ray

    if not ray.is_initialized():
        # not left to Ray, which would start a cluster of its own
        raise VersionError(f"{address} lies in a Ray cluster, and this process is in none; use sync_method=checkpoint")
    return read_following(_Objects(), address)
