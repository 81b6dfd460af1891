"""Critic: the transformer without its output head, and a linear value head that predicts the return still to come."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.models.common.params import Params

HEAD = "value_head"


def critic_params(params: Params, width: int) -> Params:
    """Returns what a critic trains, made of what a policy does, float32: the same layers or adapters, and a head of
    zeros for a model of that width, so that all values are 0.
    """
    backbone = {name: part for name, part in params.items() if name != "head"}
    return {**backbone, HEAD: np.zeros(width, np.float32)}


def values(params: Params, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch"]:
    """Computes the value of each hidden state, float32."""
    return jnp.sum(hidden.astype(jnp.float32) * jax.numpy.asarray(params[HEAD], jnp.float32), axis=-1)
