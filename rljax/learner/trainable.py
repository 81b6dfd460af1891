"""Trainable model: parameters that an optimizer updates, the policy's or a critic's, and those that none does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from rljax.config.schema import Config, OptimizerConfig
from rljax.learner.objective import DTYPES, Objective
from rljax.learner.sharding import parameter_shardings
from rljax.learner.state import make_optimizer
from rljax.learner.train_step import make_update
from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.common.placing import on_mesh
from rljax.models.frozen import abstract_frozen, read_frozen
from rljax.models.hf_names import check_tensors, place_hf
from rljax.models.transformer import abstract_params
from sidecar.stored import Tensor


def abstract_base(config: Config, architecture: Architecture, mesh: Mesh) -> Params | None:
    """Returns shapes, dtypes and shardings of the frozen weights below an adapter, in the dtype that is computed in;
    None where all weights are trained. On an only device they are those of `read_frozen`.
    """
    if config.model.lora.rank is None:
        return None
    dtype = DTYPES[config.model.dtype]
    if mesh.size == 1:
        return abstract_frozen(architecture, dtype, mesh.devices.flat[0])
    shapes = abstract_params(architecture)
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, dtype, sharding=s), shapes, parameter_shardings(shapes, mesh)
    )


def read_base(tensors: Mapping[str, Tensor], config: Config, architecture: Architecture, mesh: Mesh) -> Params:
    """Reads the frozen weights below an adapter, as `abstract_base` says.

    Raises:
        ValueError: as `place_hf`.
    """
    dtype = DTYPES[config.model.dtype]
    if mesh.size == 1:
        check_tensors(tensors, architecture)
        return read_frozen(tensors, architecture, dtype, mesh.devices.flat[0])
    return place_hf(tensors, architecture, parameter_shardings(abstract_params(architecture), mesh), dtype)


class TrainableModel:
    """Shards one set of parameters over the mesh and updates it; holds none itself.

    Args:
        objective: what is minimised.
        config: of the optimizer.
        params: shapes and dtypes of what is trained.
        mesh: of the learner.

    Attributes:
        shardings: of the parameters and of the optimizer state.
        abstract: shapes, dtypes and shardings of both.
        init: makes the optimizer state of placed parameters.
        copy_as: returns, for a dtype, the program that copies placed parameters and casts them to it.
    """

    def __init__(self, objective: Objective, config: OptimizerConfig, params: Params, mesh: Mesh) -> None:
        self.objective = objective
        optimizer = make_optimizer(config, 1)  # of any schedule: the state is the same
        shapes = params, jax.eval_shape(optimizer.init, params)
        self.shardings = parameter_shardings(shapes[0], mesh), parameter_shardings(shapes[1], mesh)
        self.abstract: tuple[Params, Any] = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, self.shardings
        )
        self.init = jax.jit(optimizer.init, out_shardings=self.shardings[1])
        self.update = make_update(objective, config, self.shardings)
        # A copy where nothing has to be cast: what is updated has its buffers donated.
        self.copy_as = functools.cache(
            lambda dtype: jax.jit(
                lambda params: jax.tree.map(lambda x: jnp.copy(x).astype(dtype), params),
                out_shardings=self.shardings[0],
            )
        )

    def place(self, params: Params) -> Params:
        """Returns a float32 copy of the parameters on the mesh: training donates it, so it may not be the caller's."""

        def copied(x: Any, sharding: NamedSharding) -> jax.Array:
            if isinstance(x, np.ndarray):
                return on_mesh(np.asarray(x, np.float32), sharding, may_alias=False)
            return jax.device_put(x, sharding, may_alias=False)

        return jax.tree.map(copied, params, self.shardings[0])
