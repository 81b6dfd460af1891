"""Publishes versions as what has changed since the one before, where that is less than the whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from rljax.weights.gathering import Tensors, gathered, infos_of
from rljax.weights.publisher import OrbaxPublisher, sync
from sidecar.channels.changes import Changes, changed_values, changes_of, packed_changes
from sidecar.channels.versions import CHANGES_NAME, Manifest, TensorInfo, version_directory

PAYS = 0.2
"""Bytes of changes, of those of the whole, up to which they are written: where 13 % of the values of bfloat16 have
changed. Beyond that, to find and to apply them takes more of a processor than a disk or network of 1 GB/s takes for the
rest (``bench/push_deltas.py``).
"""
TOLD_AFTER = 8
"""Versions in a row that have changed too much, after which users are told."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compared:
    """A version on the host, as it is to be written.

    Attributes:
        manifest: of the version; without tensors where it is to be written whole.
        arrays: of the whole version, by name.
        changes: of those that have changed since its base; None where it is to be written whole.
        share: share of the compared values that have changed; None where none were. Where that is too much already, no
            more are compared.
    """

    manifest: Manifest
    arrays: dict[str, np.ndarray]
    changes: Mapping[str, Changes] | None = None
    share: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of numbers that are to be written."""
        return sum(one.nbytes for one in (self.arrays if self.changes is None else self.changes).values())

    @property
    def metrics(self) -> dict[str, float]:
        """Values for a step's metrics."""
        found = {"publish/bytes": float(self.nbytes), "publish/whole": float(self.changes is None)}
        return found if self.share is None else found | {"publish/changed_share": self.share}


class Comparison:
    """Compares each version with the one before, which it keeps on the host."""

    def __init__(self, most: int) -> None:
        """Lets up to ``most`` versions in a row be written as what has changed; the next is whole."""
        self._most, self._in_a_row, self._too_much = most, 0, 0
        self._last: tuple[Manifest, dict[str, np.ndarray]] | None = None

    def base(self) -> tuple[int, int] | None:
        """Returns version and lineage of the version that the next may be written against; None: it will be whole."""
        return None if self._last is None or self._in_a_row >= self._most else self._last[0].identity

    def forget(self) -> None:
        """Has the next version be whole."""
        self._last = None

    def keep(self, written: Compared, manifest: Manifest) -> None:
        """Keeps a version that has been written, with its manifest."""
        self._last = manifest, written.arrays
        self._in_a_row = 0 if written.changes is None else self._in_a_row + 1
        self._too_much = self._too_much + 1 if written.changes is None and written.share else 0
        if self._too_much == TOLD_AFTER:
            log.warning(
                "sync_deltas: the last %d versions have changed too much and were written whole (%.0f%% of the newest's"
                " values are others); if it stays so, leave the key out: to compare takes time",
                TOLD_AFTER,
                100 * (written.share or 0.0),
            )

    def of(self, head: Manifest, tensors: Tensors) -> Compared:
        """Gathers a version, and compares it with the last, whose arrays are let go meanwhile: unless `keep` follows,
        the next version is whole.

        Raises:
            DtypeError: a tensor is not of its type.
        """
        base, old = self.base(), {} if self._last is None else self._last[1]
        self.forget()
        whole, values = (sum(getattr(array, of) for array in old.values()) for of in ("nbytes", "size"))
        arrays, infos, changes = dict[str, np.ndarray](), dict[str, TensorInfo](), dict[str, Changes]()
        changed, compared = 0, 0
        comparing = base is not None and base[0] < head.version and base[1] == head.lineage and values > 0
        share: float | None = None
        for group in gathered(tensors, head.dtype):
            arrays |= group
            if comparing and all(name in old and _alike(old[name], array) for name, array in group.items()):
                before = {name: old.pop(name) for name in group}
                changed += sum(_each(changed_values, before, group).values())
                compared += sum(array.size for array in group.values())
                share = changed / max(compared, 1)
                if comparing := changed * (1 + whole / values) <= PAYS * whole:  # a byte of gap and a value each
                    infos |= infos_of(group)
                    changes |= _each(changes_of, before, group)
            else:
                comparing = False
            if not comparing:
                old = {}
        head = replace(head, followed=True)
        if not comparing or old or sum(one.nbytes for one in changes.values()) > PAYS * whole:
            return Compared(head, arrays, share=share)
        changes = {name: one for name, one in changes.items() if one.values.size}
        return Compared(replace(head, base=base, tensors=infos), arrays, changes, share)


class DeltaPublisher(OrbaxPublisher):
    """Publishes versions as files: of a version that is not whole, a file of what has changed since the one before."""

    def __init__(self, directory: Path, most: int) -> None:
        """Creates the run's ``weights`` if need be; up to ``most`` versions in a row are not whole.

        Raises:
            PublishError: it cannot be made.
        """
        super().__init__(directory)
        self._comparison = Comparison(most)

    def _write(self, hidden: Path, draft: Path, head: Manifest, tensors: Tensors) -> Manifest:
        base = self._comparison.base()
        if base is not None and not version_directory(self.directory, *base).exists():
            self._comparison.forget()
        compared = self._comparison.of(head, tensors)
        manifest = compared.manifest
        if compared.changes is None:
            manifest = super()._write(hidden, draft, manifest, compared.arrays)
        else:
            draft.mkdir()
            save_file(packed_changes(compared.changes), draft / CHANGES_NAME)
            sync(draft / CHANGES_NAME)
        self._comparison.keep(compared, manifest)
        self.metrics = compared.metrics
        return manifest


def _alike(old: np.ndarray, new: np.ndarray) -> bool:
    return old.shape == new.shape and old.dtype == new.dtype


def _each(function: Any, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, Any]:
    with ThreadPoolExecutor() as pool:  # numpy lets go of the interpreter
        return dict(zip(after, pool.map(function, before.values(), after.values()), strict=True))
