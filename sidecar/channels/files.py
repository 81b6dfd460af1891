"""Reads versions from their directories as numpy arrays, without JAX and Orbax."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from safetensors import SafetensorError
from safetensors.numpy import load_file

from sidecar.channels.chains import read
from sidecar.channels.versions import (
    CHANGES_NAME,
    MANIFEST_NAME,
    Manifest,
    PublishedVersion,
    VersionError,
    VersionGoneError,
    array_spec,
    gone,
    part_directory,
    read_manifest,
)
from sidecar.errors import first_line

READ_SECONDS = 300.0
"""Seconds in which a version must be read: longer than a slow disk takes, so that only one that hangs fails."""


class Files:
    """Versions in their directories, a `Source`."""

    def manifest(self, where: str) -> Manifest:
        """See `Source.manifest`."""
        return read_manifest(where)

    def arrays(self, where: str, manifest: Manifest) -> Mapping[str, np.ndarray]:
        """See `Source.arrays`: all are read at the same time."""
        return _read_arrays(Path(where), manifest)

    def changes(self, where: str) -> Mapping[str, np.ndarray]:
        """See `Source.changes`."""
        file = Path(where) / CHANGES_NAME
        try:
            return load_file(file)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            if not self.is_there(where):
                raise VersionGoneError(gone(where)) from error
            raise VersionError(f"{file} cannot be read: {first_line(error)}; publish the version again") from error

    def is_there(self, where: str) -> bool:
        """See `Source.is_there`."""
        return (Path(where) / MANIFEST_NAME).exists()


def read_version(path: str | Path) -> PublishedVersion:
    """Reads every tensor of the version in directory ``path`` and checks it; see `sidecar.channels.chains.read`.

    Raises:
        VersionError: the version is gone, or a tensor is missing, mis-shaped or corrupted; the line names it.
    """
    return read(Files(), str(Path(path).absolute()))


def _read_arrays(path: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    # one context: the OCDBT index is read once for all tensors; all of them are opened, then read, at the same time
    context = tensorstore.Context({})
    deadline = time.time() + READ_SECONDS
    stores: dict[str, Any] = {}
    for name, info in manifest.tensors.items():
        spec = array_spec(part_directory(path, info.part), name)
        stores[name] = tensorstore.open(spec, open=True, context=context)
    reads = {name: _wait(path, name, store, deadline).read() for name, store in stores.items()}
    return {name: _wait(path, name, read, deadline) for name, read in reads.items()}


def _wait(path: Path, name: str, future: Any, deadline: float) -> Any:
    try:
        return future.result(deadline=deadline)
    except TimeoutError:
        raise VersionError(
            f"{path}: tensor {name} was not read within {READ_SECONDS:g} s; look at the disk or network it lies on"
        ) from None
    except (ValueError, OSError, RuntimeError) as error:
        if not (path / MANIFEST_NAME).exists():
            raise VersionGoneError(gone(str(path))) from error
        raise VersionError(
            f"{path}: tensor {name} cannot be read: {first_line(error)}; publish the version again"
        ) from error
