"""Checksums of a checkpoint's arrays and metadata: taken from what is saved, compared with what lies on the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore

from sidecar.channels.versions import checksum
from sidecar.errors import first_line

_READ_SECONDS = 1200.0
"""Seconds in which one array must be read: beyond it the disk counts as hanging, not as slow."""
# Where Orbax keeps the arrays within its checkpoint; tests/learner/test_checkpoints.py pins it.
_ARRAYS = "state"


class DamagedArrayError(ValueError):
    """An array on the disk is not what was saved: one line that names it."""


def checksums_of(state: Any) -> dict[str, str]:
    """Returns the checksum of every leaf of a pytree of arrays and numbers, by the name that Orbax saves it under.

    All of the state is copied to the host for it, as Orbax does to write it.
    """
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    ]
    with ThreadPoolExecutor() as pool:  # zlib lets go of the interpreter
        sums = pool.map(lambda leaf: checksum(np.asarray(leaf)), [leaf for _, leaf in leaves])
        return {name: found for (name, _), found in zip(leaves, sums, strict=True)}


def checksum_of_metadata(metadata: Mapping[str, Any]) -> str:
    """Returns the checksum of metadata: the same for the same JSON, however it is spelled."""
    spelled = json.dumps(metadata, sort_keys=True).encode()
    return checksum(np.frombuffer(spelled, np.uint8))


def verify_arrays(checkpoint: Path, expected: Mapping[str, str]) -> None:
    """Reads arrays of a checkpoint, one after the other, and compares them with their checksums.

    Args:
        checkpoint: the directory, absolute.
        expected: what `checksums_of` returned, or a part of it.

    Raises:
        DamagedArrayError: the first array that is missing, cannot be decoded or has another checksum.
        PermissionError: this user may not read it.
        TimeoutError: the disk does not answer.
    """
    context = tensorstore.Context({})  # one: the index is read once for all arrays
    for name, wanted in expected.items():
        found = checksum(_read(checkpoint, name, context))
        if found != wanted:
            raise DamagedArrayError(f"{name} is corrupted: its checksum is {found}, and {wanted} was saved")


def _read(checkpoint: Path, name: str, context: tensorstore.Context) -> np.ndarray:
    kvstore = {"driver": "ocdbt", "base": f"file://{checkpoint / _ARRAYS}/", "path": f"{name}/"}
    try:
        store = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, context=context)
        array: np.ndarray = store.result(timeout=_READ_SECONDS).read().result(timeout=_READ_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"{name} was not read within {_READ_SECONDS:g} s; look at the disk it lies on") from None
    except (ValueError, OSError, RuntimeError) as error:
        if "PERMISSION_DENIED" in str(error):
            raise PermissionError(f"{name} cannot be read: permission denied") from error
        reason = first_line(error).partition(" [tensorstore_spec=")[0]
        raise DamagedArrayError(f"{name} cannot be read: {reason}") from error
    return array
