"""Checkpoints of the learner's state: written in the background by Orbax, counted only once committed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from rljax.learner.state import TrainState
from rljax.models.common.transformer import Params
from sidecar.failpoints import failpoint

SAVE_TIMEOUT = 1200.0
"""Seconds that one checkpoint may take before the run fails."""

_TRASH = ".deleting"


class CheckpointError(RuntimeError):
    """Raised for a checkpoint that could not be written or read: one line with what, where and what to do."""


class Checkpoints:
    """The checkpoints of a run: ``DIRECTORY/<step>``, a step being the number of batches trained.

    One learner writes; any number of processes may read. At most one save is under way, and the state may be donated
    as soon as `save` returns: Orbax has copied it to the host by then, or holds the host buffer so that XLA copies
    instead of reusing it.

    Args:
        directory: made when the first checkpoint is saved.
        keep: committed checkpoints kept; older ones are deleted once a newer one is committed.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory.absolute()  # Orbax refuses others, once it writes
        self.keep = keep
        self._pending: tuple[int, Any] | None = None

    def committed(self) -> list[int]:
        """Returns the steps of the committed checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        paths = [path for path in self.directory.iterdir() if path.name.isdecimal()]
        return sorted(int(path.name) for path in paths if ocp.is_orbax_checkpoint(path))

    def save(self, step: int, state: TrainState, metadata: Mapping[str, Any]) -> None:
        """Starts to write a checkpoint; waits for the one before first. A checkpoint of the same step is replaced.

        Args:
            step: batches trained.
            state: what to save.
            metadata: anything that JSON can hold, given back by `metadata`.

        Raises:
            CheckpointError: this save could not be started, or the one before failed.
        """
        self.wait()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._delete_leftovers()
            with _context():
                response = ocp.save_async(
                    self.directory / str(step), state, overwrite=True, custom_metadata=dict(metadata)
                )
        except (OSError, ValueError) as error:
            raise self._failed("write", step, error) from error
        failpoint("commit")
        self._pending = (step, response)

    def wait(self, timeout: float = SAVE_TIMEOUT) -> None:
        """Returns when the save under way, if any, is committed, and deletes what is beyond `keep`.

        Raises:
            CheckpointError: it failed, or took longer than `timeout` seconds.
        """
        if self._pending is None:
            return
        (step, response), self._pending = self._pending, None
        try:
            response.result(timeout=timeout)
        except Exception as error:  # Orbax re-raises whatever its writers met
            raise self._failed("write", step, error) from error
        for old in self.committed()[: -self.keep]:
            self._delete(self.directory / str(old))

    def restore(self, step: int, abstract_state: TrainState) -> TrainState:
        """Reads a committed checkpoint, onto whatever devices the shardings of `abstract_state` name.

        Args:
            step: one of `committed`.
            abstract_state: `jax.ShapeDtypeStruct` leaves with shardings; `Learner.abstract_state` makes it.

        Raises:
            CheckpointError: there is none of that step, or it does not fit `abstract_state`.
        """
        return self._load(step, abstract_state, abstract_state.params)

    def restore_params(self, step: int, abstract_params: Params) -> Params:
        """Reads the weights alone of a committed checkpoint, float32, onto one device of this process.

        Raises:
            CheckpointError: there is none of that step, or it does not fit `abstract_params`.
        """
        # Without a sharding Orbax would ask for the devices that wrote the checkpoint.
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), abstract_params)
        context = _context()
        context.pytree.loading.partial_load = True
        with context:
            return self._load(step, {"params": params}, params)["params"]

    def _load(self, step: int, abstract: Any, params: Params) -> Any:
        if step not in self.committed():
            raise CheckpointError(f"no committed checkpoint of step {step} in {self.directory}; {self._present()}")
        path = self.directory / str(step)
        try:
            saved, wanted = _shapes(ocp.metadata(path).metadata["params"]), _shapes(params)
            differing = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
            if differing:
                first = differing[0]
                raise ValueError(f"it is of another model: {first} is {saved.get(first)}, not {wanted.get(first)}")
            if isinstance(abstract, TrainState):
                _check_aux_state(ocp.metadata(path).metadata.get("aux_state") or {}, abstract.aux_state)
            return ocp.load(path, abstract)
        except Exception as error:  # Orbax has no common base class for what it raises here
            raise self._failed("read", step, error) from error

    def metadata(self, step: int) -> dict[str, Any]:
        """Returns what `save` was given as `metadata`."""
        return dict(ocp.metadata(self.directory / str(step)).custom_metadata or {})

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
        path.rename(trash)
        shutil.rmtree(trash)

    def _delete_leftovers(self) -> None:
        for path in self.directory.iterdir():
            if path.is_dir() and not (path.name.isdecimal() and ocp.is_orbax_checkpoint(path)):
                shutil.rmtree(path)


def _shapes(params: Any) -> dict[str, tuple[int, ...]]:
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
