"""Writes the arrays of a version as an Orbax checkpoint, by tensorstore alone.

Orbax itself takes two to three times as long for the same files (``bench/RESULTS.md``), and numbers what it does by a
counter of the whole process: two that write at once, each alone, take each other's signals for their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from rljax.weights.gathering import Tensors, gathered, infos_of
from sidecar.channels.versions import ARRAYS, TensorInfo, array_spec

WRITE_SECONDS = 1200.0
"""Seconds that an operation may take, at most to write a group: longer than on a slow disk, so that only one that hangs
fails.
"""
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
_DICTIONARY_KEY = 2
"""Orbax's number for the key of a dictionary, in the path to a leaf of a tree."""


class DiskHangsError(TimeoutError):
    """An operation has taken more than `WRITE_SECONDS`."""


def write_arrays(path: Path, tensors: Tensors, dtype: str) -> dict[str, TensorInfo]:
    """Writes tensors to a new directory, group by group; returns what a manifest says of them. While a group is
    written, its checksums are taken and the next is gathered.

    Raises:
        DtypeError: a tensor is not of type ``dtype``.
        OSError, ValueError: they cannot be written. Nothing writes any more, but after a `DiskHangsError`.
    """
    (path / ARRAYS).mkdir(parents=True)
    context, infos = tensorstore.Context({}), dict[str, TensorInfo]()
    writing = list[Any]()
    try:
        for group in gathered(tensors, dtype):
            _await(writing, path)
            writing.append(_begun(path, group, context))
            infos |= infos_of(group)
            del group
        _await(writing, path)
    except BaseException as first:
        try:
            _await(writing, path)
        except DiskHangsError as hangs:  # who is told of it asks nothing more of the disk
            raise hangs from first
        except Exception:  # of two failures the first is told
            pass
        raise
    _describe(path, infos)
    return infos


def _await(writing: list[Any], path: Path) -> None:
    """Waits for what is being written, if anything is; then nothing is.

    Raises:
        DiskHangsError: it is not.
    """
    while writing:
        _result(writing.pop(), path)


def _result(future: Any, path: Path) -> Any:
    try:
        return future.result(timeout=WRITE_SECONDS)
    except TimeoutError:
        raise DiskHangsError(
            f"{path}: a write took more than {WRITE_SECONDS:g} s; look at the disk or network it lies on"
        ) from None


def _begun(path: Path, group: Mapping[str, np.ndarray], context: tensorstore.Context) -> Any:
    """Begins to write a group; returns what its end is to be waited for by. Nobody may write to the arrays until then:
    they are not copied.
    """
    transaction = tensorstore.Transaction()
    stores = [
        tensorstore.open(
            _created(path, name),
            create=True,
            context=context,
            transaction=transaction,
            shape=array.shape,
            dtype=array.dtype,
            chunk_layout=tensorstore.ChunkLayout(chunk_shape=array.shape),
        )
        for name, array in group.items()
    ]
    for store, array in zip(stores, group.values(), strict=True):
        _result(_result(store, path).write(array, can_reference_source_data_indefinitely=True).copy, path)
    return transaction.commit_async()


def _created(path: Path, name: str) -> dict[str, Any]:
    """Returns what tensorstore makes an array by: as Orbax's own, with what describes it in the index."""
    spec = array_spec(path, name)
    kvstore = spec["kvstore"] | {"config": {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000}}
    return spec | {"kvstore": kvstore, "store_data_equal_to_fill_value": True}


def _describe(path: Path, names: Iterable[str]) -> None:
    """Writes what Orbax wants to know of a checkpoint: who reads it, and its tree. No engine reads it."""
    checkpoint = {"item_handlers": {ARRAYS: _HANDLER}}
    (path / "_CHECKPOINT_METADATA").write_text(json.dumps(checkpoint))
    leaves = {
        str((name,)): {
            "key_metadata": [{"key": name, "key_type": _DICTIONARY_KEY}],
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
        for name in names
    }
    tree = {
        "tree_metadata": leaves,
        "use_ocdbt": True,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    (path / ARRAYS / "_METADATA").write_text(json.dumps(tree))
