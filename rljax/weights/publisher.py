"""Publishes versions of the weights to engines, by one of several channels.

`OrbaxPublisher` uses the file system, which works on every machine and needs nothing of the receiver but
`sidecar.channels.files`. `rljax.weights.channels` knows the others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rljax.weights.arrays import DiskHangsError, write_arrays
from rljax.weights.gathering import DtypeError, Tensors, gathered, infos_of, on_host
from sidecar.channels.versions import (
    MANIFEST_NAME,
    AdapterInfo,
    Manifest,
    PublishedVersion,
    TensorInfo,
    VersionError,
    part_directory,
    read_manifest,
    version_directory,
)
from sidecar.errors import first_line
from sidecar.failpoints import failpoint
from sidecar.stored import DamagedFileError

log = logging.getLogger(__name__)


class SharedTensors(Mapping[str, Any]):
    """Tensors of a learner of several hosts, each of which writes some of them."""

    @abstractmethod
    def own(self, beside: Path) -> Tensors:
        """Returns those that this host writes. As they are read, the others write theirs to ``beside``: each to its
        `part_directory` there.
        """

    @abstractmethod
    def others(self) -> Mapping[str, TensorInfo]:
        """Waits until the others have written theirs; returns what a manifest says of them.

        Raises:
            HostLost, HostsError: one cannot.
        """


_HIDDEN = ".unfinished-"
_BEGUN = "begun"
"""File beside a version that is being written: tensorstore makes directories anew that somebody has removed."""
_HIDDEN_BY = re.compile(r"\.unfinished-(\d+)-[0-9a-f]{32}(?![0-9a-f-])")  # Orbax added words of its own
_VISIBLE = re.compile(r"v(\d+)-(\d+)")


class PublishError(RuntimeError):
    """A version could not be written; nothing of it is visible. One line: what, where, what to do."""


class Publisher(Protocol):
    """Publishes versions to engines, over one channel. One process publishes; any number read."""

    metrics: Mapping[str, float]
    """Values for a step's metrics, of the version that was published last."""

    spare: int
    """Versions before the newest that stay for whoever is about to load one; 0 where they take the learner's memory,
    and whoever comes too late loads the newest.
    """

    def take(self, tensors: Tensors) -> Tensors:
        """Takes a learner's tensors to where this channel has them; returns them as `publish` may read them at any
        time after, on any thread, whatever the learner does meanwhile.

        Raises:
            DamagedFileError: as `publish`.
        """
        ...

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
        """Makes a version visible, whole or not at all, and returns the path or address that a `WeightUpdate` carries.

        Args:
            version: batches that these weights have seen.
            lineage: life of the learner.
            tensors: unstacked, all of type `dtype`.
            model: name of the model, for people.
            dtype: ``bf16`` or ``fp32``.
            adapter: what the tensors change; None where they are a whole model.

        Raises:
            PublishError: it could not be written.
            DamagedFileError: it comes from the files of a model, and one is damaged.
        """
        ...

    def delete(self, version: int, lineage: int) -> None:
        """Withdraws a version; no error if it is not there."""
        ...

    def prune(self, keep: Collection[tuple[int, int]], lineage: int) -> None:
        """Withdraws every version of ``lineage`` and of those before it, unless its (version, lineage) is in ``keep``,
        and removes what crashed writers of theirs have left. Versions of later lineages are left alone.
        """
        ...

    def close(self) -> None:
        """Closes the channel. What only this process held is gone."""
        ...


class OrbaxPublisher:
    """Publishes versions as Orbax checkpoints below one directory.

    A version is written under a hidden name and renamed, so a crash leaves nothing that a reader could take for one.
    Both names carry the lineage: `prune` tells by it whose they are, and no writer comes upon another's.
    """

    spare = 1

    def __init__(self, directory: Path) -> None:
        """Creates `directory`, the run's ``weights``, if need be.

        Raises:
            PublishError: it cannot be made.
        """
        self.directory = Path(directory).absolute()
        self.metrics: Mapping[str, float] = {}
        self._bases: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._told = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PublishError(
                f"{self.directory} cannot be used for weights: {error}; choose another run_dir"
            ) from error

    def take(self, tensors: Tensors) -> Tensors:
        """See `Publisher.take`: to the host, whole."""
        return on_host(tensors)

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
        """See `Publisher.publish`. A version that is there already is replaced, unless it is the same."""
        final = version_directory(self.directory, version, lineage)
        hidden = self._hidden(lineage)
        draft = hidden / final.name  # beside it are the parts of other hosts
        abandoned = isinstance(tensors, SharedTensors)  # another host may write on, or its disk hang
        try:
            self._sweep(range(1, lineage))  # it takes the space; of 0 are those of explorers, which may be at it
            hidden.mkdir()
            (hidden / _BEGUN).touch()
            manifest = self._write(hidden, draft, Manifest(version, lineage, model, dtype, {}, adapter), tensors)
            failpoint("write")
            (draft / MANIFEST_NAME).write_text(manifest.to_json())
            sync(draft / MANIFEST_NAME)
            sync(draft)
            if not (hidden / _BEGUN).exists():
                raise PublishError(
                    f"version {version} is not published to {final}: {hidden} was removed while it was written; has "
                    "another learner taken over?"
                )
            self._rename_into_place(draft, final, manifest)
            abandoned = False
        except (DtypeError, DamagedFileError, PublishError):
            raise
        except DiskHangsError as error:
            abandoned = True
            raise PublishError(f"version {version} is not published to {final}: {error}") from error
        except (OSError, ValueError, RuntimeError) as error:
            raise PublishError(
                f"version {version} cannot be published to {final}: {first_line(error)}; "
                "free disk space or choose another run_dir"
            ) from error
        finally:
            if not abandoned:  # else a successor removes it, or `prune`
                self._remove_tree(hidden)
        return str(final)

    def delete(self, version: int, lineage: int) -> None:
        """See `Publisher.delete`. Who is reading it gets a `VersionError`."""
        self._remove(version_directory(self.directory, version, lineage), lineage)

    def close(self) -> None:
        """See `Publisher.close`: what is written stays."""

    def prune(self, keep: Collection[tuple[int, int]], lineage: int) -> None:
        """See `Publisher.prune`. Who is writing in an earlier lineage gets a `PublishError`. What a kept version was
        written against is kept with it.
        """
        needed = with_bases(keep, self._base_of)
        self._bases = {identity: base for identity, base in self._bases.items() if identity in needed}
        for version, published_by in reversed(self.published()):  # each before those that it was written against
            if published_by <= lineage and (version, published_by) not in needed:
                self.delete(version, published_by)
        self._sweep(range(lineage + 1))

    def published(self) -> list[tuple[int, int]]:
        """Returns the (version, lineage) of every version that is there, in order."""
        found = (_VISIBLE.fullmatch(entry.name) for entry in self.directory.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _write(self, hidden: Path, draft: Path, head: Manifest, tensors: Tensors) -> Manifest:
        """Writes a version's arrays to ``draft``; returns its manifest: ``head``, with them."""
        return replace(head, tensors=_written(hidden, draft, tensors, head.dtype))

    def _base_of(self, identity: tuple[int, int]) -> tuple[int, int] | None:
        if identity not in self._bases:
            try:
                self._bases[identity] = read_manifest(version_directory(self.directory, *identity)).base
            except VersionError:  # it is not there, or nobody can read it
                return None
        return self._bases[identity]

    def _rename_into_place(self, draft: Path, final: Path, manifest: Manifest) -> None:
        if final.exists():
            # two processes may publish the initial weights at once; whoever reads the first must not lose them
            with contextlib.suppress(VersionError):
                if read_manifest(final) == manifest:
                    return
            self.delete(manifest.version, manifest.lineage)
        draft.rename(final)
        sync(self.directory)  # the ledger names it next, and both are to outlive a crash
        self._bases[manifest.identity] = manifest.base

    def _remove(self, directory: Path, lineage: int) -> None:
        """Removes a directory, if it is there. It is renamed first: nobody sees half of it, or goes on to write it."""
        hidden = self._hidden(lineage)
        try:
            directory.rename(hidden)
        except FileNotFoundError:
            return
        except OSError:  # some file systems rename no directory of which a file is open
            hidden = directory
            for first in (MANIFEST_NAME, _BEGUN):  # without these it is no version, and no draft
                with contextlib.suppress(OSError):
                    (hidden / first).unlink()
        self._remove_tree(hidden)

    def _sweep(self, lineages: range) -> None:
        """Removes what writers of these lineages have left, and are kept from finishing by that."""
        for entry in self.directory.iterdir():
            if entry.name.startswith(_HIDDEN):
                written_by = _HIDDEN_BY.match(entry.name)  # None: by an earlier rljax, which named host and process
                if (int(written_by[1]) if written_by else 0) in lineages:
                    self._remove(entry, max(lineages))

    def _remove_tree(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        if not self._told and os.path.lexists(directory):  # unlike those of `Path` it raises nothing
            self._told = True
            log.warning("%s cannot be removed, and takes disk space; every later version tries again", directory)

    def _hidden(self, lineage: int) -> Path:
        return self.directory / f"{_HIDDEN}{lineage}-{uuid.uuid4().hex}"


def sync(path: Path) -> None:
    """Waits until a file, or what a directory names, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():  # some sync no directories
            raise
    finally:
        os.close(opened)


def with_bases(
    keep: Iterable[tuple[int, int]], base_of: Callable[[tuple[int, int]], tuple[int, int] | None]
) -> set[tuple[int, int]]:
    """Returns the (version, lineage) of versions, and of those that these were written against, back to whole ones."""
    needed = set[tuple[int, int]]()
    for kept in keep:
        identity: tuple[int, int] | None = kept
        while identity is not None and identity not in needed:
            needed.add(identity)
            identity = base_of(identity)
    return needed


def describe(head: Manifest, tensors: Tensors) -> PublishedVersion:
    """Returns the version as numpy arrays, with the manifest that engines check them against: ``head``, with them.

    Raises:
        DtypeError: a tensor is not of its type.
    """
    arrays: dict[str, np.ndarray] = {}
    for group in gathered(tensors, head.dtype):
        arrays |= group
    return PublishedVersion(replace(head, tensors=infos_of(arrays)), arrays)


def _written(hidden: Path, draft: Path, tensors: Tensors, dtype: str) -> dict[str, TensorInfo]:
    """Writes a version's arrays, by all hosts where they share them; returns what the manifest says of them."""
    if not isinstance(tensors, SharedTensors):
        return write_arrays(draft, tensors, dtype)
    infos = write_arrays(draft, tensors.own(hidden), dtype)
    others = tensors.others()
    for host in {info.part for info in others.values()}:
        part_directory(hidden, host).rename(part_directory(draft, host))
    return {name: infos.get(name) or others[name] for name in tensors}
