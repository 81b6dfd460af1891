"""Checkpoints of the learner's state: written in the background by Orbax, counted only once committed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from rljax.learner.checksums import (
    Checksum,
    DamagedArrayError,
    checksum_of_metadata,
    checksums_of,
    named_leaves,
    read_arrays,
    unflattened,
    verify_arrays,
)
from rljax.learner.orbax_lock import alone_in_orbax
from rljax.learner.state import TrainState
from rljax.ledger.database import StaleWriterError
from rljax.ledger.fence import Fence
from rljax.models.common.params import Params
from rljax.weights.draft import Draft, delete_abandoned
from sidecar.errors import first_line
from sidecar.failpoints import failpoint

SAVE_TIMEOUT = 1200.0
"""Seconds that one checkpoint may take before the run fails."""

_SAVED = "checkpoint"  # in its draft
_TRASH = ".deleting"
_DAMAGED = ".damaged"
_CHECKSUMS = "checksums"
_CHECKSUM = "metadata_checksum"  # of all the other metadata
_FORMER_AUX_STATE = "companions"  # as checkpoints of an earlier rljax call it
_METADATA = "_CHECKPOINT_METADATA"
# What Orbax reads first of a checkpoint, and has written before the directory gets its name.
_NEEDED = (_METADATA, "state/_METADATA", "state/manifest.ocdbt")
_DESCRIPTIONS = ("state/_METADATA", "state/_sharding")  # of the arrays, in JSON
_SPARE_DESCRIPTORS = 64
"""More than Orbax opens to read the descriptions: with so many to spare it lacks none."""
_STAGED = re.compile(r"\.saving-(\d+)-\d+")

log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """Raised for a checkpoint that could not be written or read: one line with what, where and what to do."""


class DamagedCheckpointError(CheckpointError):
    """Raised for a checkpoint that is not what was saved, or of which something is missing."""


class Checkpoints:
    """The checkpoints of a run: ``DIRECTORY/<step>``, a step being the number of batches trained.

    One learner writes; any number of processes may read. At most one save is under way, and the state may be donated
    as soon as `save` returns: Orbax has copied it to the host by then, or holds the host buffer so that XLA copies
    instead of reusing it.

    A checkpoint is written under a hidden name with its lineage, and takes its place when it is whole and its learner
    still is the living one. A learner that was replaced so neither replaces nor deletes what its successor has written.

    Args:
        directory: made when the first checkpoint is saved.
        keep: committed checkpoints kept, None: all; older ones are deleted once a newer one is committed.
    """

    def __init__(self, directory: Path, keep: int | None) -> None:
        self.directory = directory.absolute()  # Orbax refuses others, once it writes
        self.keep = keep
        self._pending: tuple[int, Future[None], Fence | None] | None = None
        self._committer = ThreadPoolExecutor(1, "checkpoint")

    def committed(self) -> list[int]:
        """Returns the steps of the committed checkpoints, oldest first. An empty or half-deleted directory is none."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if _is_checkpoint(path))

    def save(self, step: int, state: TrainState, metadata: Mapping[str, Any], fence: Fence | None = None) -> None:
        """Starts to write a checkpoint; waits for the one before first. A checkpoint of the same step is replaced.

        Args:
            step: batches trained.
            state: what to save.
            metadata: anything that JSON can hold, given back by `metadata`. Its ``lineage`` says who has written it.
            fence: of the learner; None where nobody else writes.

        Raises:
            CheckpointError: this save could not be started, or the one before failed.
            StaleWriterError: another learner has taken over.
        """
        self.wait()
        if fence is not None:
            fence.check()
        lineage = fence.lineage if fence is not None else 0
        draft = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._delete_leftovers(lineage)
            draft = Draft(self.directory / f".saving-{lineage}-{step}")
            described = {**metadata, _CHECKSUMS: self._checksums_of(state)}
            described[_CHECKSUM] = checksum_of_metadata(described)
            with alone_in_orbax():
                response = self._write(draft.path / _SAVED, state, described)
        except (OSError, ValueError) as error:
            if draft is not None:
                draft.delete()
            raise self._failed("write", step, error) from error
        failpoint("commit")
        self._pending = (step, self._committer.submit(self._commit, step, draft, response, fence), fence)

    def wait(self, timeout: float = SAVE_TIMEOUT) -> None:
        """Returns when the save under way, if any, is committed, and deletes what is beyond `keep`.

        Raises:
            CheckpointError: it failed, or took longer than `timeout` seconds.
            StaleWriterError: another learner has taken over.
        """
        if self._pending is None:
            return
        (step, commit, fence), self._pending = self._pending, None
        try:
            commit.result(timeout=timeout)
        except StaleWriterError:
            raise
        except Exception as error:  # Orbax re-raises whatever its writers met
            late = TimeoutError(f"it was not written within {timeout:g} s; is its disk stuck, or too slow?")
            raise self._failed("write", step, error if commit.done() else late) from error
        for old in self._superseded(step):
            if fence is None or self._lineage(old) <= fence.lineage:
                self._delete(self.directory / str(old))

    def _commit(self, step: int, draft: Draft, response: Any, fence: Fence | None) -> None:
        try:
            response.result()
            if fence is not None:
                fence.check()
            final = self.directory / str(step)
            if final.exists():
                self._delete(final)
            (draft.path / _SAVED).rename(final)
        finally:
            draft.delete()

    def _superseded(self, step: int) -> list[int]:
        """Returns the committed steps to delete with `step`: all but the newest `keep`, and those of a lost history."""
        committed = self.committed()
        until = [other for other in committed if other <= step]
        return until[: -self.keep if self.keep else 0] + committed[len(until) :]

    def _lineage(self, step: int) -> int:
        try:
            return int(self.metadata(step).get("lineage", 0))
        except DamagedCheckpointError:
            return 0  # nobody can go on from it

    def restore(self, step: int, abstract_state: TrainState) -> TrainState:
        """Reads a committed checkpoint, onto whatever devices the shardings of `abstract_state` name.

        Args:
            step: one of `committed`.
            abstract_state: `jax.ShapeDtypeStruct` leaves with shardings; `Learner.abstract_state` makes it.

        Raises:
            DamagedCheckpointError: it is not what was saved.
            CheckpointError: there is none of that step, or it does not fit `abstract_state`.
        """

        def read(path: Path) -> TrainState:
            self._verify(step, path)
            _check_shapes(_tree(path)["params"], abstract_state.params)
            return self._load_state(path, abstract_state)

        return self._load(step, read)

    def _verify(self, step: int, path: Path) -> None:
        verify_arrays(path, self._checksums(path))

    def _checksums_of(self, state: TrainState) -> Mapping[str, Checksum]:
        return checksums_of(state)

    def _write(self, path: Path, state: TrainState, metadata: Mapping[str, Any]) -> Any:
        with _context():
            return ocp.save_async(path, state, custom_metadata=metadata)

    def restore_params(self, step: int, abstract_params: Params) -> Params:
        """Reads the weights alone of a committed checkpoint: float32 numpy arrays.

        Raises:
            DamagedCheckpointError: they are not what was saved.
            CheckpointError: there is none of that step, or it does not fit `abstract_params`.
        """

        def read(path: Path) -> Params:
            saved = self._checksums(path)
            names = [name for name in saved or named_leaves(_tree(path)) if name.startswith("params.")]
            arrays = dict(zip(names, read_arrays(path, {name: saved.get(name) for name in names}), strict=True))
            params: Params = unflattened(arrays)["params"]
            _check_shapes(params, abstract_params)
            return params

        return self._load(step, read)

    def _load(self, step: int, read: Callable[[Path], Any]) -> Any:
        if step not in self.committed():
            raise CheckpointError(f"no committed checkpoint of step {step} in {self.directory}; {self._present()}")
        try:
            return read(self.directory / str(step))
        except DamagedArrayError as error:
            raise self._damaged(step, error) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:  # Orbax's own notes beside arrays that are whole
            raise self._damaged(step, first_line(error)) from error
        except Exception as error:  # Orbax has no common base class for what it raises here
            raise self._failed("read", step, error) from error

    def _load_state(self, path: Path, abstract: TrainState) -> TrainState:
        tree = _tree(path)
        name = _FORMER_AUX_STATE if _FORMER_AUX_STATE in tree else "aux_state"
        _check_aux_state(tree.get(name) or {}, abstract.aux_state)
        fields = {field.name: getattr(abstract, field.name) for field in dataclasses.fields(abstract)}
        fields[name] = fields.pop("aux_state")
        _tell_of_casts(path, tree, fields)
        context = ocp.Context()
        # One large array at a time, or several small ones: else all of the state is on the host before it is placed.
        arrays = [x for x in jax.tree.leaves(fields) if isinstance(x, jax.ShapeDtypeStruct)]
        context.memory.read_concurrent_bytes = 1 + max(math.prod(x.shape) * x.dtype.itemsize for x in arrays)
        with alone_in_orbax(), context:
            loaded = ocp.load(path, fields)
        loaded["aux_state"] = loaded.pop(name)
        return TrainState(**loaded)

    def _checksums(self, path: Path) -> dict[str, Checksum]:
        saved = _custom_metadata(path).get(_CHECKSUMS)
        if saved is None:
            log.warning("%s was saved without checksums, by an earlier rljax: its arrays are not checked", path)
        return dict(saved or {})

    def metadata(self, step: int) -> dict[str, Any]:
        """Returns what `save` was given as `metadata`.

        Raises:
            DamagedCheckpointError: it cannot be read.
        """
        try:
            found = _custom_metadata(self.directory / str(step))
        except DamagedArrayError as error:
            raise self._damaged(step, error) from error
        return {name: value for name, value in found.items() if name != _CHECKSUMS}

    def set_aside(self, step: int, fence: Fence | None = None) -> Path:
        """Renames a damaged checkpoint, so that it no longer counts; returns its path until the next `save`.

        Raises:
            StaleWriterError: another learner has taken over, and may have written a whole one in its place.
        """
        if fence is not None:
            fence.check()
        aside = self.directory / f"{step}{_DAMAGED}"
        if aside.exists():
            shutil.rmtree(aside)
        (self.directory / str(step)).rename(aside)
        return aside

    def _damaged(self, step: int, error: object) -> DamagedCheckpointError:
        older = [str(s) for s in self.committed() if s < step]
        hint = f"the one before is of step {older[-1]}" if older else "there is none before it"
        return DamagedCheckpointError(f"the checkpoint of step {step} in {self.directory} is damaged: {error}; {hint}")

    def _failed(self, verb: str, step: int, error: BaseException) -> CheckpointError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return CheckpointError(
            f"could not {verb} the checkpoint of step {step} in {self.directory}: {reason}; {self._present()}"
        )

    def _present(self) -> str:
        return f"committed there: {', '.join(map(str, self.committed())) or 'none'}"

    def _delete(self, path: Path) -> None:
        # Renamed first: a half-deleted directory must never look committed.
        trash = path.with_name(path.name + _TRASH)
        shutil.rmtree(trash, ignore_errors=True)
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)  # what is left of it goes with the next save

    def _delete_leftovers(self, lineage: int) -> None:
        for path in self.directory.iterdir():
            written_by = _STAGED.match(path.name)
            if written_by and int(written_by[1]) > lineage:
                continue
            if path.is_dir() and not _is_checkpoint(path):
                delete_abandoned(path)


def _is_checkpoint(path: Path) -> bool:
    return (
        path.name.isdecimal()
        and all((path / name).is_file() for name in _NEEDED)
        and bool(ocp.is_orbax_checkpoint(path))
    )


def _custom_metadata(path: Path) -> dict[str, Any]:
    # Not by Orbax, which reads the arrays' descriptions for it and says much where one is damaged.
    try:
        found = dict(json.loads((path / _METADATA).read_text(encoding="utf-8")).get("custom_metadata") or {})
    except (ValueError, TypeError, AttributeError, FileNotFoundError) as error:
        raise DamagedArrayError(f"its {_METADATA} cannot be read: {first_line(error)}") from error
    wanted = found.pop(_CHECKSUM, None)  # None: from an earlier rljax
    if wanted is not None and checksum_of_metadata(found, str(wanted)) != wanted:
        raise DamagedArrayError(f"its {_METADATA} is corrupted: it does not have the checksum that was saved")
    if not found.keys() & {_CHECKSUMS, "lineage"}:
        raise DamagedArrayError(f"its {_METADATA} is corrupted: it names neither lineage nor checksums")
    return found


def _tree(path: Path) -> Mapping[str, Any]:
    found = ocp.metadata(path).metadata
    if isinstance(found, Mapping):
        return found
    # Orbax gives None for whatever went wrong, descriptors that ran out as well as a byte that flipped.
    for name in _DESCRIPTIONS:
        try:
            json.loads((path / name).read_text(encoding="utf-8"))
        except (ValueError, FileNotFoundError) as error:
            raise DamagedArrayError(f"its {name} cannot be read: {first_line(error)}") from error
    with contextlib.ExitStack() as spare:
        for _ in range(_SPARE_DESCRIPTORS):  # raises where they ran out
            spare.callback(os.close, os.dup(2))
    again = ocp.metadata(path).metadata
    if isinstance(again, Mapping):
        return again
    raise DamagedArrayError(f"its {' or '.join(_DESCRIPTIONS)} is corrupted: Orbax cannot read it")


def _check_shapes(saved: Params, wanted: Params) -> None:
    there, here = _shapes(saved), _shapes(wanted)
    differing = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if differing:
        first = differing[0]
        raise ValueError(f"it is of another model: {first} is {there.get(first)}, not {here.get(first)}")


def _tell_of_casts(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    there, here = (
        {name: x.dtype for name, x in named_leaves(tree).items() if hasattr(x, "dtype")} for tree in (saved, wanted)
    )
    differing = sorted(name for name in there.keys() & here.keys() if there[name] != here[name])
    if differing:
        first, more = differing[0], f" and {len(differing) - 1} more" * (len(differing) > 1)
        log.warning(
            "%s: %s%s were saved in %s and go on in %s: model.dtype, or mu_dtype or nu_dtype of the optimizer, was "
            "another",
            *(path, first, more, there[first], here[first]),
        )


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
    return {jax.tree_util.keystr(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(params)}


def _check_aux_state(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = sorted(saved.keys() ^ wanted.keys())
    if differing:
        verb = "has" if differing[0] in saved else "lacks"
        raise ValueError(
            f"it {verb} {', '.join(differing)}: algorithm.kl, adv_estimator, pg_variant or norm_* asked for something "
            "else when it was written; write what they were, or choose another run_dir"
        )


def _context() -> ocp.Context:
    # Compression costs more time than it saves on weights. Directories are made before save_async returns, because a
    # failure to make one later leaves Orbax's writers waiting for it until they time out.
    context = ocp.Context()
    context.array.saving.use_compression = False
    context.asynchronous.timeout_secs = int(SAVE_TIMEOUT)
    context.asynchronous.create_directories_asynchronously = False
    return context
