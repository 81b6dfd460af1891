"""Teachers: models whose weights stay as they are, and whose log-probabilities the policy is drawn to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.config.distill import TEACHERS
from rljax.config.schema import Config, TeacherConfig
from rljax.learner.objective import DTYPES, PolicyObjective
from rljax.learner.packing import Batch, PackedBatch
from rljax.learner.scoring import Score
from rljax.learner.sharding import parameter_shardings
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.params import Params
from rljax.models.common.placing import on_mesh
from rljax.models.hf_names import place_hf
from rljax.models.transformer import abstract_params
from rljax.trajectory import Trajectory
from sidecar.stored import Tensor


@dataclass(frozen=True)
class StoredTeacher:
    """A teacher's architecture and its tensors by Hugging Face name, none of them read yet; None: a plan has none."""

    architecture: Architecture
    tensors: Mapping[str, Tensor] | None = None


TokenValues = list[Float[np.ndarray, " time"]]
"""Values of every token of trajectories."""
Ask = Callable[[Sequence[Trajectory], TokenValues, int], TokenValues]
"""Returns a teacher's log-probabilities of the tokens of trajectories, for a step; those of weight 0 need none."""


class Teacher(Protocol):
    """A teacher: what it thinks of the tokens of a minibatch."""

    @property
    def settings(self) -> TeacherConfig:
        """Its keys."""
        ...

    def scores(
        self, packed: PackedBatch, trajectories: Sequence[Trajectory], tasksets: Sequence[str], batch: Batch, step: int
    ) -> Float[Array, "slot row place"]:
        """Returns its log-probabilities of a minibatch's trained tokens, sharded as the `places` of the batch are.

        Args:
            packed: the minibatch, on the host.
            trajectories: of it.
            tasksets: of those that were sampled, which come first.
            batch: the minibatch, on the mesh.
            step: that it is of.
        """
        ...

    def program(self, batch: Batch) -> tuple[Any, Params] | None:
        """Returns the program that scores such a batch, and its weights; None: no program does."""
        ...


def token_weights(settings: TeacherConfig, trajectories: Sequence[Trajectory], tasksets: Sequence[str]) -> TokenValues:
    """Returns the weight of a teacher's reverse KL for every token of trajectories; 0 of those beyond the tasksets
    named, which are demonstrations.
    """
    each = [settings.weight_in(taskset) for taskset in tasksets]
    each += [0.0] * (len(trajectories) - len(tasksets))
    return [np.full(len(t.token_ids), w, np.float32) for t, w in zip(trajectories, each, strict=True)]


@dataclass(frozen=True)
class PlacedTeacher:
    """A teacher on the learner's mesh, cut over it as a policy of its architecture would be. Implements `Teacher`.

    Attributes:
        params: its weights in the dtype that is computed in; their shapes and shardings where a plan has none.
        score: gives its log-probabilities by one forward pass.
    """

    settings: TeacherConfig
    params: Params
    score: Score

    def scores(
        self, packed: PackedBatch, trajectories: Sequence[Trajectory], tasksets: Sequence[str], batch: Batch, step: int
    ) -> Float[Array, "slot row place"]:
        """See `Teacher.scores`."""
        return self.score(self.params, batch, np.int32(packed.microbatches))

    def program(self, batch: Batch) -> tuple[Any, Params] | None:
        """See `Teacher.program`."""
        return self.score.program(batch), self.params


@dataclass(frozen=True)
class AskedTeacher:
    """A teacher that is asked elsewhere. Implements `Teacher`.

    Attributes:
        ask: asks it; None: a plan asks nothing.
    """

    settings: TeacherConfig
    ask: Ask | None = None

    def scores(
        self, packed: PackedBatch, trajectories: Sequence[Trajectory], tasksets: Sequence[str], batch: Batch, step: int
    ) -> Float[Array, "slot row place"]:
        """See `Teacher.scores`.

        Raises:
            TeacherError: it cannot be asked.
        """
        assert self.ask is not None
        sharding: Any = batch.places.sharding
        return on_mesh(
            packed.at_places(self.ask(trajectories, token_weights(self.settings, trajectories, tasksets), step)),
            sharding,
        )

    def program(self, batch: Batch) -> tuple[Any, Params] | None:
        """See `Teacher.program`."""
        return None


def place_teachers(
    config: Config, mesh: Mesh, hardware: Hardware, given: Mapping[str, StoredTeacher | AskedTeacher]
) -> dict[str, Teacher]:
    """Reads the teachers of a config onto the mesh, tensor by tensor; those that are asked stay where they are.

    Args:
        config: of the run.
        mesh: of the learner.
        hardware: that they are compiled for.
        given: by name.

    Raises:
        ValueError: one of them is not among these.
    """
    found: dict[str, Teacher] = {}
    for name, settings in config.algorithm.distill.teachers.items():
        one = given.get(name)
        if one is None:
            raise ValueError(f"{TEACHERS}.{name}: its weights were not handed to the learner")
        if isinstance(one, StoredTeacher):
            objective = PolicyObjective(config, one.architecture, hardware)
            found[name] = _placed(objective, mesh, settings, one)
        else:
            found[name] = one
    return found


def _placed(objective: PolicyObjective, mesh: Mesh, settings: TeacherConfig, stored: StoredTeacher) -> PlacedTeacher:
    shapes, dtype = abstract_params(stored.architecture), DTYPES[objective.config.model.dtype]
    shardings = parameter_shardings(shapes, mesh)
    if stored.tensors is None:
        params = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, dtype, sharding=s), shapes, shardings)
    else:
        params = place_hf(stored.tensors, stored.architecture, shardings, dtype)
    return PlacedTeacher(settings, params, Score(objective, lambda params, batch: objective.logprobs(params, batch)[0]))
