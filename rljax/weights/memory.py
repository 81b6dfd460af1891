"""Publishes versions of the weights without a disk: in this process's memory, or in Ray's object store; or as files for
others, and in memory for this process.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from rljax.models.layered import InLayers, LayeredTensors
from rljax.weights.deltas import Compared, Comparison
from rljax.weights.gathering import Tensors, check_dtypes, gathered, infos_of, on_host
from rljax.weights.publisher import OrbaxPublisher, PublishError, describe, with_bases
from sidecar.channels import memory
from sidecar.channels.changes import packed_changes
from sidecar.channels.versions import AdapterInfo, Manifest, PublishedVersion, TensorInfo, version_directory
from sidecar.errors import first_line
from sidecar.stored import DamagedFileError

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Kept:
    address: str
    base: tuple[int, int] | None
    """Version and lineage of the one that it was written against; None where it is whole."""


class MemoryPublisher:
    """Keeps versions in this process, for engines in threads of it. Arrays are copied nowhere: those of an accelerator
    stay on it, and take its memory until their version is withdrawn.

    An address names one life of the publisher, so that what an earlier process announced is gone, and not mistaken.
    """

    def __init__(self, directory: Path, adopted: bool = False) -> None:
        """Takes the run's ``weights``: ``directory`` holds what an explorer published as files before a learner lived;
        and whether the engines, on the learner's only device, compute with the very arrays of a version.

        Raises:
            PublishError: it cannot be made or listed.
        """
        self._files = OrbaxPublisher(directory)
        self._root = f"memory:{uuid.uuid4().hex}"
        self._kept: dict[tuple[int, int], _Kept] = {}
        self.metrics: Mapping[str, float] = {}
        self._adopted, self.spare = adopted, 0 if adopted else 1

    def take(self, tensors: Tensors) -> Tensors:
        """See `rljax.weights.publisher.Publisher.take`: as engines compute with them, or else arrays of an accelerator
        stay on it.
        """
        if self._adopted and (layered := by_layer(tensors)) is not None:
            return layered
        return dict(tensors) if is_on_accelerator(next(iter(tensors.values()))) else on_host(tensors)

    def publish(
        self,
        version: int,
        lineage: int,
        tensors: Tensors,
        *,
        model: str,
        dtype: str,
        adapter: AdapterInfo | None = None,
    ) -> str:
        """See `rljax.weights.publisher.Publisher.publish`."""
        address = f"{self._root}/v{version}-{lineage}"
        try:
            base = self._keep(address, Manifest(version, lineage, model, dtype, {}, adapter), tensors)
        except (PublishError, DamagedFileError):
            raise
        except (ValueError, MemoryError, RuntimeError) as error:
            raise PublishError(f"version {version} cannot be kept in memory: {first_line(error)}") from error
        self._kept[version, lineage] = _Kept(address, base)
        return address

    def delete(self, version: int, lineage: int) -> None:
        """See `rljax.weights.publisher.Publisher.delete`. An engine that has read it keeps what it read."""
        if (kept := self._kept.pop((version, lineage), None)) is not None:
            self._drop(kept.address)
        self._files.delete(version, lineage)

    def prune(self, keep: Collection[tuple[int, int]], lineage: int) -> None:
        """See `rljax.weights.publisher.Publisher.prune`: of what it holds, and of the files of before."""
        needed = with_bases(keep, self._base_of)
        # Of a copy, since another thread may publish; each goes before those that it was written against.
        for identity in sorted(set(self._kept) - needed, reverse=True):
            self.delete(*identity)
        self._files.prune(keep, lineage)

    def close(self) -> None:
        """See `rljax.weights.publisher.Publisher.close`."""
        while self._kept:
            self._drop(self._kept.popitem()[1].address)

    def _base_of(self, identity: tuple[int, int]) -> tuple[int, int] | None:
        kept = self._kept.get(identity)
        return None if kept is None else kept.base

    def _keep(self, address: str, head: Manifest, tensors: Tensors) -> tuple[int, int] | None:
        """Keeps a version; returns the one that it was written against, None where it is whole."""
        if self._adopted and (layered := by_layer(tensors)) is not None:
            memory.keep(address, describe_layered(head, layered))
        elif is_on_accelerator(next(iter(tensors.values()))):  # all are of one learner
            memory.keep(address, describe_on_device(head, dict(tensors)))
        else:
            memory.keep(address, describe(head, tensors))
        return None

    def _drop(self, address: str) -> None:
        memory.drop(address)


class SharedDevicePublisher(OrbaxPublisher):
    """Publishes versions as files, and hands the newest to engines in threads of this process as the learner's device
    has it: they read no file. It takes the device's memory until the next is published, where engines compute with
    just that of theirs alone; where there is no room for it, they read the files.
    """

    _newest = ""
    _tight = False

    def take(self, tensors: Tensors) -> Tensors:
        """See `rljax.weights.publisher.Publisher.take`: they stay on the device where it has room, else on the host."""
        memory.drop(self._newest)  # before the next takes its memory; the files of who still reads it are there
        there = self._on_device(tensors)
        return super().take(tensors) if there is None else there  # here nothing holds what had found room

    def publish(
        self,
        version: int,
        lineage: int,
        tensors: Tensors,
        *,
        model: str,
        dtype: str,
        adapter: AdapterInfo | None = None,
    ) -> str:
        """See `rljax.weights.publisher.Publisher.publish`."""
        taken, head = self.take(tensors), Manifest(version, lineage, model, dtype, {}, adapter)
        layered = isinstance(taken, LayeredTensors)
        if not layered and not isinstance(next(iter(taken.values())), jax.Array):
            return super().publish(version, lineage, taken, model=model, dtype=dtype, adapter=adapter)
        written = taken if layered else _Copies(taken)
        path = super().publish(version, lineage, written, model=model, dtype=dtype, adapter=adapter)
        memory.keep(path, describe_on_device(head, taken))
        self._newest = path
        return path

    def delete(self, version: int, lineage: int) -> None:
        """See `rljax.weights.publisher.Publisher.delete`."""
        memory.drop(str(version_directory(self.directory, version, lineage)))
        super().delete(version, lineage)

    def _on_device(self, tensors: Tensors) -> Tensors | None:
        """Returns the tensors as the device has them; None where it has no room for them."""
        try:
            layered = by_layer(tensors)
            return dict(tensors) if layered is None else layered
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        if not self._tight:
            log.warning("the device has no room for a version beside the engine's: engines read the files")
        self._tight = True
        return None

    def close(self) -> None:
        """See `rljax.weights.publisher.Publisher.close`: files stay."""
        memory.drop(self._newest)


class _Copies(Mapping[str, jax.Array]):
    """Arrays, each copied when it is asked for: JAX keeps what it moves to the host for as long as the array lives."""

    def __init__(self, arrays: Mapping[str, jax.Array]) -> None:
        """Takes the arrays by name."""
        self._arrays = arrays

    def __getitem__(self, name: str) -> jax.Array:
        return self._arrays[name].copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def by_layer(tensors: Tensors) -> LayeredTensors | None:
    """Returns tensors as engines of this process compute with them, made once; None of those that are made by name."""
    if isinstance(tensors, LayeredTensors):
        return tensors
    return tensors.by_layer() if isinstance(tensors, InLayers) else None


def describe_layered(head: Manifest, tensors: LayeredTensors) -> PublishedVersion:
    """Returns the version as arrays that JAX lets nobody write to, which have no checksums, with its manifest.

    Raises:
        DtypeError: they are not of its type.
    """
    check_dtypes({"of all": tensors}, head.dtype)
    infos = {name: TensorInfo(shape, tensors.dtype, "") for name, shape in tensors.shapes.items()}
    return PublishedVersion(replace(head, tensors=infos), tensors)


def describe_on_device(head: Manifest, tensors: Mapping[str, Any]) -> PublishedVersion:
    """Returns the version as arrays of an accelerator, which have no checksums, with its manifest: ``head``, with them.

    Raises:
        DtypeError: a tensor is not of its type.
    """
    if isinstance(tensors, LayeredTensors):
        return describe_layered(head, tensors)
    check_dtypes(tensors, head.dtype)
    infos = {name: TensorInfo(tuple(array.shape), str(array.dtype), "") for name, array in tensors.items()}
    return PublishedVersion(replace(head, tensors=infos), tensors)


def is_on_accelerator(array: Any) -> bool:
    """Returns whether an array lies on accelerators, where nobody can write to it."""
    return isinstance(array, jax.Array) and all(device.platform != "cpu" for device in array.devices())


class RayPublisher(MemoryPublisher):
    """Keeps versions in the object store of the Ray cluster that this process has joined, for engines in any process of
    it. They live as long as this process: its actor holds the references, and Ray frees what a dead process owned.
    """

    def __init__(self, directory: Path, deltas: int = 0) -> None:
        """See `MemoryPublisher`; up to ``deltas`` versions in a row are kept as what has changed since the one before.

        Raises:
            PublishError: this process has joined no cluster, or the actor that holds the versions did not start.
        """
        import ray

        super().__init__(directory)
        if not ray.is_initialized():
            raise PublishError("sync_method=memory: this process has joined no Ray cluster; set launcher=ray")
        name = f"weights-{uuid.uuid4().hex}"
        self._root = f"ray:{name}"
        self._comparison = Comparison(deltas) if deltas else None
        self._store: Any = (
            ray.remote(num_cpus=0)(memory.WeightStore).options(name=name, namespace=memory.NAMESPACE).remote()
        )
        self._seconds = memory.RAY_SECONDS
        self._ask("start", self._store.find, "")

    def take(self, tensors: Tensors) -> Tensors:
        """See `rljax.weights.publisher.Publisher.take`: to the host, from where the store copies them."""
        return on_host(tensors)

    def close(self) -> None:
        """See `rljax.weights.publisher.Publisher.close`."""
        import ray

        self._kept.clear()
        with contextlib.suppress(ray.exceptions.RayError):  # the actor is dead, or the cluster is
            # The kill is only on its way when it returns: until it arrives, versions would be found.
            ray.get(self._store.clear.remote(), timeout=_CLOSE_SECONDS)
        ray.kill(self._store)

    def _keep(self, address: str, head: Manifest, tensors: Tensors) -> tuple[int, int] | None:
        import ray

        compared: Compared | None = None
        try:
            if self._comparison is None:
                manifest, parts = _stored(head, tensors)
            else:
                compared = self._compared(self._comparison, head, tensors)
                manifest, parts = _stored_compared(compared)
        except ray.exceptions.RayError as error:
            raise PublishError(
                f"{address} cannot be put into Ray's object store: {first_line(error)}; give the store more memory"
            ) from error
        self._ask("keep a version", self._store.keep, address.partition("/")[2], manifest.to_json(), parts)
        if self._comparison is not None and compared is not None:
            self._comparison.keep(compared, manifest)
            self.metrics = compared.metrics
        return manifest.base

    def _compared(self, comparison: Comparison, head: Manifest, tensors: Tensors) -> Compared:
        if comparison.base() not in self._kept:
            comparison.forget()
        return comparison.of(head, tensors)

    def _drop(self, address: str) -> None:
        self._ask("drop a version", self._store.drop, address.partition("/")[2])

    def _ask(self, what: str, method: Any, *arguments: Any) -> None:
        import ray

        try:
            ray.get(method.remote(*arguments), timeout=self._seconds)
        except ray.exceptions.RayError as error:
            raise PublishError(
                f"the Ray actor that holds the weights did not {what}: {first_line(error)}; look at the cluster"
            ) from error


def _stored_compared(compared: Compared) -> tuple[Manifest, list[Any]]:
    """Puts what is to be written of a version into the object store; returns its manifest and the references."""
    import ray

    if compared.changes is None:
        return _stored(compared.manifest, compared.arrays)
    return compared.manifest, [ray.put(packed_changes(compared.changes))]


def _stored(head: Manifest, tensors: Tensors) -> tuple[Manifest, list[Any]]:
    """Puts a whole version into the object store; returns its manifest, ``head`` with the tensors, and the references.

    Raises:
        DtypeError: a tensor is not of its type.
    """
    import ray

    parts, infos = list[Any](), dict[str, TensorInfo]()
    for arrays in gathered(tensors, head.dtype):
        parts.append(ray.put(memory.packed(arrays)))
        infos |= infos_of(arrays)
        del arrays  # the store has a copy; the next are yet to be gathered
    return replace(head, tensors=infos), parts
