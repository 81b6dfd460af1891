"""Parts of a version: what each host of a learner writes of it, beside the others."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rljax.weights.arrays import DiskHangsError, write_arrays
from rljax.weights.publisher import PublishError
from sidecar.channels.versions import TensorInfo
from sidecar.errors import first_line
from sidecar.failpoints import failpoint

_AHEAD = 1
"""Units that are made and not yet written, at most."""


def owners(sizes: Sequence[int], hosts: int) -> list[int]:
    """Returns which host writes each unit of a model, by the bytes of each: the first of those that have least."""
    taken, found = [0] * hosts, []
    for size in sizes:
        rank = taken.index(min(taken))
        taken[rank] += size
        found.append(rank)
    return found


class PartWriter:
    """Writes what one host writes of a version, in a thread, as it is made."""

    def __init__(self, path: Path, part: int, names: Sequence[str], dtype: str) -> None:
        """Begins to write tensors of these names and of this type, in order, to a directory; of no names nothing."""
        self.path, self._part, self._names = path, part, frozenset(names)
        self._made: queue.Queue[Mapping[str, np.ndarray] | None] = queue.Queue(_AHEAD)
        self._thread = ThreadPoolExecutor(1, "part of a version")
        self._infos = self._thread.submit(self._write, names, dtype)

    def put(self, tensors: Mapping[str, Any]) -> None:
        """Takes what is made next, of which some may have to be written, off its device; waits while what came before
        is not yet written.
        """
        if own := {name: np.asarray(array) for name, array in tensors.items() if name in self._names}:
            self._made.put(own)

    def close(self) -> dict[str, TensorInfo]:
        """Waits until all is written; returns what a manifest says of it.

        Raises:
            PublishError: it could not be written, or not all of it was given.
        """
        self._made.put(None)
        self._thread.shutdown()
        try:
            infos = self._infos.result()
        except DiskHangsError as error:
            raise PublishError(str(error)) from error
        except (OSError, ValueError, RuntimeError) as error:
            why = f"{self.path} cannot be written: {first_line(error)}; free disk space or choose another run_dir"
            raise PublishError(why) from error
        return {name: replace(info, part=self._part) for name, info in infos.items()}

    def _write(self, names: Sequence[str], dtype: str) -> dict[str, TensorInfo]:
        handed = _Handed(names, self._made)
        failpoint("part")
        try:
            return write_arrays(self.path, handed, dtype) if names else {}
        finally:
            handed.drain()


class _Handed(Mapping[str, Any]):
    """Tensors as they are handed over, in the order of their names."""

    def __init__(self, names: Sequence[str], made: queue.Queue[Mapping[str, np.ndarray] | None]) -> None:
        self._names, self._made, self._ended = names, made, False
        self._here: Mapping[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        while name not in self._here:
            unit = self._made.get()
            if unit is None:
                self._ended = True
                raise ValueError("the version was given up")
            self._here = unit
        return self._here[name]

    def drain(self) -> None:
        """Lets go of what still comes, so that nobody waits to hand it over."""
        while not self._ended:
            self._ended = self._made.get() is None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
