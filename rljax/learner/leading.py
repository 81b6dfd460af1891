"""The learner and the checkpoints of host 0 of several: they have the other hosts do what they do."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.checksums import Checksum, checksum_of_metadata, checksums_of_shards
from rljax.learner.export import ExportedWeights
from rljax.learner.hosts import Hosts
from rljax.learner.learner import Learner
from rljax.learner.orbax_lock import alone_in_orbax, go_on_after, last_operation
from rljax.learner.packing import Batch
from rljax.learner.served import TeacherError
from rljax.learner.state import TrainState
from rljax.learner.teachers import Ask, TokenValues
from rljax.models.common.params import Params
from rljax.models.hf_names import tensor_shapes
from rljax.observe.parts import HOSTS, part
from rljax.trajectory import Group, TaskId, Trajectory, encode
from rljax.weights.gathering import Tensors
from rljax.weights.parts import owners
from rljax.weights.publisher import SharedTensors
from sidecar.channels.versions import TensorInfo, tensor_info
from sidecar.checksum import checksum
from sidecar.errors import first_line
from sidecar.failpoints import failpoint
from sidecar.fingerprint import fingerprint
from sidecar.stored import Tensor

LOAD, RESTORE, TRAIN, SCORE, EXPORT = "load", "restore", "train", "score", "export"
CHECKSUMS, SAVE, WRITTEN = "checksums", "save", "written"
"""Announcements of host 0 about its learner and checkpoints; `rljax.pipeline.follow` does the same on the others."""
_ANSWERED, _FAILED = b"+", b"-"


class LeadingLearner(Learner):
    """A learner whose mesh has devices of several hosts, on host 0. Those that follow do what it does."""

    def __init__(self, hosts: Hosts, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hosts = hosts

    def load(self, tensors: Mapping[str, Tensor], adapter: Params | None = None) -> None:
        """See `Learner.load`."""
        self._hosts.announce(LOAD)
        self._hosts.agree("read the model", weights_named(tensors))
        super().load(tensors, adapter)

    def train(
        self,
        groups: Sequence[Group],
        *,
        reused: Sequence[Group] = (),
        demonstrations: Sequence[Trajectory] = (),
        before: Callable[[Sequence[Batch]], None] = lambda batches: None,
    ) -> dict[str, float]:
        """See `Learner.train`. Its metrics also say how long it took to agree on the batch, for how much of that the
        slowest host was waited for, and which it was.

        Raises:
            HostsError: a host is late, or has packed another batch.
        """
        said: dict[str, float] = {}
        began = time.perf_counter()

        def agreed(batches: Sequence[Batch]) -> None:
            before(batches)
            packed = time.perf_counter()
            with part(HOSTS):
                waited, slowest = self._hosts.agree(f"train step {self.steps}", batch_named(self.steps, batches))
            agreeing = announced - began + time.perf_counter() - packed
            said.update({"hosts/agree": agreeing, "hosts/wait": waited, "hosts/slowest": float(slowest)})

        shown = [Group(TaskId("", 0, 0), tuple(demonstrations))] if demonstrations else []
        sizes = {"step": self.steps, "groups": len(groups), "reused": len(reused)}
        self._hosts.announce(TRAIN, sizes, [encode(group) for group in (*groups, *reused, *shown)])
        announced = time.perf_counter()
        return super().train(groups, reused=reused, demonstrations=demonstrations, before=agreed) | said

    def score(self, token_ids: Int[np.ndarray, " time"]) -> Float[np.ndarray, " time-1"]:
        """See `Learner.score`."""
        self._hosts.announce(SCORE, {"tokens": [int(token) for token in token_ids]})
        self._hosts.agree("score the probe")
        return super().score(token_ids)

    def export(self, dtype: str) -> Tensors:
        """See `Learner.export`: a layer is announced when it is made."""
        return LeadingWeights(self._hosts, self.weights(dtype), self, dtype)


class LeadingWeights(SharedTensors):
    """Tensors of a version, on host 0. All hosts make each layer together, and of files one of them writes it."""

    def __init__(self, hosts: Hosts, weights: ExportedWeights, learner: Learner, dtype: str) -> None:
        weights.before = self._announce
        self._hosts, self._weights, self._dtype, self._steps = hosts, weights, dtype, learner.steps
        self._owners = owners_of(weights, learner, hosts.number)
        self._beside: Path | None = None

    def own(self, beside: Path) -> Tensors:
        """See `SharedTensors.own`."""
        self._beside = beside
        self._own = _Own(self._weights, [name for name, rank in self._owners.items() if rank == 0])
        return self._own

    def others(self) -> Mapping[str, TensorInfo]:
        """See `SharedTensors.others`."""
        self._own.finish()
        self._hosts.announce(WRITTEN)
        what = "write a version"
        self._hosts.agree(what, {"number of trained batches": str(self._steps)})
        given = [json.loads(one) for one in self._hosts.gather(what, b"{}")]
        self._hosts.doing("")
        return {name: tensor_info(info) for infos in given for name, info in infos.items()}

    def _announce(self, layer: int | None) -> None:
        path = None if self._beside is None else str(self._beside)
        self._hosts.announce(EXPORT, {"dtype": self._dtype, "layer": layer, "beside": path})
        self._hosts.agree("export weights", {"number of trained batches": str(self._steps)})
        if path is not None:
            self._hosts.doing("write a version")

    def __getitem__(self, name: str) -> jax.Array:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def owners_of(weights: ExportedWeights, learner: Learner, hosts: int) -> dict[str, int]:
    """Returns which host writes each tensor of a version: what is made together goes to one."""
    shapes, units = tensor_shapes(learner.architecture), weights.units.values()
    sizes = [sum(math.prod(shapes.get(name, ())) for name in names) for names in units]
    return {name: rank for names, rank in zip(units, owners(sizes, hosts), strict=True) for name in names}


class _Own(Mapping[str, Any]):
    """Tensors that host 0 writes; what stands before one is made first, for the others."""

    def __init__(self, weights: ExportedWeights, names: Sequence[str]) -> None:
        self._weights, self._names, self._left = weights, names, list(weights)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> jax.Array:
        while self._left[0] != name:
            self._weights[self._left.pop(0)]
        return self._weights[self._left.pop(0)]

    def finish(self) -> None:
        """Makes what is left, for the others."""
        for name in self._left:
            self._weights[name]


class LeadingCheckpoints(Checkpoints):
    """The checkpoints of a run, on host 0: it alone makes, names, checks and deletes them; every host writes its shards
    and reads its own.
    """

    def __init__(self, hosts: Hosts, directory: Path, keep: int | None) -> None:
        super().__init__(directory, keep)
        self._hosts = hosts

    def _verify(self, step: int, path: Path) -> None:
        super()._verify(step, path)
        self._hosts.announce(RESTORE, {"step": step, "operation": last_operation()})
        self._hosts.agree(f"restore the checkpoint of step {step}", metadata_named(self, step))

    def _checksums_of(self, state: TrainState) -> Mapping[str, Checksum]:
        self._hosts.announce(CHECKSUMS)
        what = f"save step {state.step}"
        self._hosts.agree(what, {"number of trained batches": str(state.step)})
        found: dict[str, dict[str, str]] = {}
        for given in self._hosts.gather(what, own_checksums(state, leads=True)):
            for name, parts in json.loads(given).items():
                found.setdefault(name, {}).update(parts)
        return {name: parts.get("", parts) for name, parts in found.items()}

    def _write(self, path: Path, state: TrainState, metadata: Mapping[str, Any]) -> Any:
        self._hosts.announce(SAVE, {"path": str(path), "operation": last_operation()})
        self._hosts.agree(f"save step {state.step}")
        return super()._write(path, state, metadata)


class FollowingCheckpoints(Checkpoints):
    """The checkpoints of a run, on another host. Host 0 has looked whether they are whole."""

    def save_shards(self, path: Path, state: TrainState, operation: int) -> Any:
        """Begins to write this host's shards of a state, after Orbax's operation of that number on host 0; returns what
        to wait for by ``result()``.
        """
        failpoint("shards")
        go_on_after(operation)
        with alone_in_orbax():
            return self._write(path, state, {})

    def _verify(self, step: int, path: Path) -> None:
        failpoint("restore")


def own_checksums(state: TrainState, *, leads: bool) -> bytes:
    """Returns the checksums of what this host writes of a state, as JSON."""
    return json.dumps(checksums_of_shards(state, with_numbers=leads)).encode()


def metadata_named(checkpoints: Checkpoints, step: int) -> dict[str, str]:
    """Returns what tells a checkpoint from another, for `Hosts.agree`."""
    return {f"checkpoint of step {step}": checksum_of_metadata(checkpoints.metadata(step))}


def asked_by_leader(hosts: Hosts, ask: Ask | None) -> Ask:
    """Returns what gives every host a teacher's answers to host 0, which alone has an ``ask``: another answer to the
    same question may differ in its last bits. Where host 0 got none all raise its `TeacherError`.
    """

    def answer(trajectories: Sequence[Trajectory], weights: TokenValues, step: int) -> bytes | None:
        if ask is None:
            return None
        try:
            found = np.concatenate([np.zeros(0, np.float32), *ask(trajectories, weights, step)])
        except Exception as error:  # all hosts end by it: they would wait for what never comes
            said = str(error) if isinstance(error, TeacherError) else f"{type(error).__name__}: {first_line(error)}"
            return _FAILED + said.encode()
        return _ANSWERED + found.astype(np.float32).tobytes()

    def share(trajectories: Sequence[Trajectory], weights: TokenValues, step: int) -> TokenValues:
        said = hosts.share("ask a teacher", answer(trajectories, weights, step))
        if said[:1] == _FAILED:
            raise TeacherError(said[1:].decode())
        return np.split(np.frombuffer(said[1:], np.float32), np.cumsum([len(t.token_ids) for t in trajectories])[:-1])

    return share


def weights_named(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns what hosts compare of a model's files: each would place its own shards of another model."""
    return {"model's weights (model.path)": fingerprint(tensors)}


def batch_named(step: int, batches: Sequence[Batch]) -> dict[str, str]:
    """Returns what tells a step and its packed batch from another, for `Hosts.agree`."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(list(batches))]
    return {"step": str(step), "batch": " ".join(checksum(array) for array in arrays)}
