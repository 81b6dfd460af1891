"""Teachers: models whose weights stay as they are, and whose log-probabilities the policy is drawn to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from rljax.config.distill import TEACHERS
from rljax.config.schema import Config, TeacherConfig
from rljax.learner.objective import DTYPES, PolicyObjective
from rljax.learner.scoring import Score
from rljax.learner.sharding import parameter_shardings
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.params import Params
from rljax.models.hf_names import place_hf
from rljax.models.transformer import abstract_params
from rljax.trajectory import Trajectory
from sidecar.stored import Tensor


@dataclass(frozen=True)
class StoredTeacher:
    """A teacher's architecture and its tensors by Hugging Face name, none of them read yet; None: a plan has none."""

    architecture: Architecture
    tensors: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Teacher:
    """A teacher on the learner's mesh, cut over it as a policy of its architecture would be.

    Attributes:
        settings: its keys.
        params: its weights in the dtype that is computed in; their shapes and shardings where a plan has none.
        score: gives its log-probabilities of a batch's trained tokens, by one forward pass.
    """

    settings: TeacherConfig
    params: Params
    score: Score

    def weights(self, trajectories: Sequence[Trajectory], tasksets: Sequence[str]) -> list[Float[np.ndarray, " time"]]:
        """Returns the weight of its reverse KL for every token of trajectories; 0 of those beyond the tasksets named,
        which are demonstrations.
        """
        each = [self.settings.weight_in(taskset) for taskset in tasksets]
        each += [0.0] * (len(trajectories) - len(tasksets))
        return [np.full(len(t.token_ids), w, np.float32) for t, w in zip(trajectories, each, strict=True)]


def place_teachers(
    config: Config, mesh: Mesh, hardware: Hardware, stored: Mapping[str, StoredTeacher]
) -> dict[str, Teacher]:
    """Reads the teachers of a config onto the mesh, tensor by tensor.

    Args:
        config: of the run.
        mesh: of the learner.
        hardware: that they are compiled for.
        stored: by name.

    Raises:
        ValueError: one of them is not among these.
    """
    found = {}
    for name, settings in config.algorithm.distill.teachers.items():
        if name not in stored:
            raise ValueError(f"{TEACHERS}.{name}: its weights were not handed to the learner")
        found[name] = _placed(
            PolicyObjective(config, stored[name].architecture, hardware), mesh, settings, stored[name]
        )
    return found


def _placed(objective: PolicyObjective, mesh: Mesh, settings: TeacherConfig, stored: StoredTeacher) -> Teacher:
    shapes, dtype = abstract_params(stored.architecture), DTYPES[objective.config.model.dtype]
    shardings = parameter_shardings(shapes, mesh)
    if stored.tensors is None:
        params = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, dtype, sharding=s), shapes, shardings)
    else:
        params = place_hf(stored.tensors, stored.architecture, shardings, dtype)
    return Teacher(settings, params, Score(objective, lambda params, batch: objective.logprobs(params, batch)[0]))
