"""Embedding lookup, with a gradient that is summed in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_Constrain = Callable[[jax.Array, str], jax.Array]


def embed(
    table: Float[Array, "vocabulary hidden"], token_ids: Int[Array, "batch time"], constrain: _Constrain
) -> Float[Array, "batch time hidden"]:
    """Returns the rows of `table` at `token_ids`, in the dtype of `table`.

    The gradient of a row is the sum over all places of its token, taken in float32 and rounded once to the dtype of
    `table`. JAX's own rule adds in that dtype, in which a bfloat16 sum of ones stands still at 256.

    Args:
        table: of embeddings.
        token_ids: rows of tokens.
        constrain: called on the gradient of what is returned, as ``embedding_gradient``.
    """
    return table[token_ids] if table.dtype == jnp.float32 else _embed(constrain, table, token_ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _embed(constrain: _Constrain, table: jax.Array, token_ids: jax.Array) -> jax.Array:
    del constrain
    return table[token_ids]


def _forward(constrain: _Constrain, table: jax.Array, token_ids: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    return _embed(constrain, table, token_ids), (table, token_ids)  # only the shape and dtype of the table are read


def _backward(constrain: _Constrain, residuals: tuple[Any, ...], d_rows: jax.Array) -> tuple[jax.Array, None]:
    table, token_ids = residuals
    d_rows = constrain(d_rows, "embedding_gradient")  # before the cast, so that devices exchange the narrower dtype
    total = jnp.zeros(table.shape, jnp.float32).at[token_ids].add(d_rows.astype(jnp.float32))
    return total.astype(table.dtype), None


_embed.defvjp(_forward, _backward)
