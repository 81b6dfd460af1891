"""Checksums of a checkpoint's arrays and metadata: taken from what is saved, compared with what lies on the disk."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore

from sidecar.checksum import checksum
from sidecar.errors import first_line

_READ_SECONDS = 1200.0
"""Seconds in which one array must be read: beyond it the disk counts as hanging, not as slow."""
_WORKERS = 4
"""Arrays that are put together on the host at once, to take their checksums."""
# Where Orbax keeps the arrays within its checkpoint; tests/learner/test_checkpoints.py pins it.
_ARRAYS = "state"
# What the system says of a file that may be whole. One that is not there says NOT_FOUND.
_PASSES = re.compile(r"RESOURCE_EXHAUSTED|UNAVAILABLE|ABORTED|CANCELLED|OS error (?!2:)")


Checksum = str | Mapping[str, str]
"""Of an array: of the whole, or of its parts; see `checksums_of_shards`."""


class DamagedArrayError(ValueError):
    """An array on the disk is not what was saved: one line that names it."""


def checksums_of(state: Any) -> dict[str, str]:
    """Returns the checksum of every leaf of a pytree of arrays and numbers, by the name that Orbax saves it under.

    The shards of the state are copied to the host for it, as Orbax does to write them.
    """
    leaves = named_leaves(state)
    with ThreadPoolExecutor(_WORKERS) as pool:  # a checksum lets go of the interpreter
        return dict(zip(leaves, pool.map(lambda leaf: checksum(_on_host(leaf)), leaves.values()), strict=True))


def checksums_of_shards(state: Any, *, with_numbers: bool) -> dict[str, dict[str, str]]:
    """Returns the checksums of the shards of a pytree that this process writes, by leaf and by the part of it, as
    ``0:4,8:16``; that of a whole array is empty. ``with_numbers``: what is no JAX array too, which one process writes.
    """
    found: dict[str, dict[str, str]] = {}
    for name, leaf in named_leaves(state).items():
        if not isinstance(leaf, jax.Array):
            found |= {name: {"": checksum(_on_host(leaf))}} if with_numbers else {}
            continue
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                part = ",".join("{}:{}".format(*one.indices(n)) for one, n in zip(shard.index, leaf.shape, strict=True))
                whole = shard.data.shape == leaf.shape
                found.setdefault(name, {})["" if whole else part] = checksum(_on_host(shard.data))
    return found


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by the names that Orbax saves them under."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def unflattened(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dicts whose `named_leaves` these are."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *way, last = name.split(".")
        functools.reduce(lambda node, key: node.setdefault(key, {}), way, tree)[last] = leaf
    return tree


def checksum_of_metadata(metadata: Mapping[str, Any], like: str = "xxh3") -> str:
    """Returns the `checksum` of metadata: the same for the same JSON, however it is spelled."""
    spelled = json.dumps(metadata, sort_keys=True).encode()
    return checksum(np.frombuffer(spelled, np.uint8), like)


def verify_arrays(checkpoint: Path, expected: Mapping[str, Checksum]) -> None:
    """Reads arrays of a checkpoint, one after the other, and compares them with their checksums.

    Args:
        checkpoint: the directory, absolute.
        expected: what `checksums_of` or `checksums_of_shards` returned, or a part of it.

    Raises:
        DamagedArrayError: the first array that is missing, cannot be decoded or has another checksum.
        OSError: it may be whole, and cannot be read now: by this user (PermissionError), in time (TimeoutError), or
            because the system lacks descriptors or memory, or its disk fails.
    """
    for _ in read_arrays(checkpoint, expected):
        pass


def read_arrays(checkpoint: Path, expected: Mapping[str, Checksum | None]) -> Iterator[np.ndarray]:
    """Yields arrays of a checkpoint, read one after the other and compared with their checksums.

    Args:
        checkpoint: the directory, absolute.
        expected: checksums by name, or None where there is none.

    Raises:
        DamagedArrayError, OSError: as `verify_arrays`.
    """
    context = tensorstore.Context({})  # one: the index is read once for all arrays
    for name, wanted in expected.items():
        array = _read(checkpoint, name, context)
        for part, sum_of_part in ({"": wanted} if isinstance(wanted, str) else wanted or {}).items():
            if (found := checksum(array[_slices(part)], sum_of_part)) != sum_of_part:
                where = f"{name}[{part}]" if part else name
                raise DamagedArrayError(f"{where} is corrupted: its checksum is {found}, and {sum_of_part} was saved")
        yield array
        del array  # before the next is read


def _slices(part: str) -> tuple[slice, ...]:
    return tuple(slice(*map(int, one.split(":"))) for one in part.split(",") if one)


def _on_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array):
        # An array keeps what `numpy.asarray` made of it for as long as it lives: this one lives until then.
        parts = [shard.data for shard in leaf.addressable_shards]
        leaf = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)
    return np.asarray(leaf)


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
        if _PASSES.search(str(error).replace(str(checkpoint), "")):
            raise OSError(f"{name} cannot be read: {reason}") from error
        raise DamagedArrayError(f"{name} cannot be read: {reason}") from error
    return array
