"""Embedding lookup, with a gradient that is summed in float32."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from rljax.models.common.hardware import ACTIVATIONS, TABLE, Hardware
from rljax.models.common.ordered import sum_by_row


def embed(
    table: Float[Array, "vocabulary hidden"], token_ids: Int[Array, "batch time"], hardware: Hardware
) -> Float[Array, "batch time hidden"]:
    """Returns the rows of `table` at `token_ids`, in the dtype of `table`.

    The gradient of a row is the sum over all places of its token, taken in float32 and rounded once to the dtype of
    `table`. JAX's own rule adds in that dtype, in which a bfloat16 sum of ones stands still at 256.

    No device ever holds more of the table than its part: it looks up the tokens that are among its rows, in its
    columns, and exchanges what it found, which is small beside a vocabulary.

    Args:
        table: of embeddings.
        token_ids: rows of tokens.
        hardware: that it is computed on.
    """
    return _embed(hardware, table.shape, table, token_ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _embed(hardware: Hardware, shape: tuple[int, int], table: jax.Array, token_ids: jax.Array) -> jax.Array:
    rows, columns, batch, time = _axes(hardware, shape, token_ids)

    def look_up(table: jax.Array, token_ids: jax.Array) -> jax.Array:
        if not rows:
            return table[token_ids]
        found = jnp.take(table, own_rows(token_ids, table.shape[0], rows), axis=0, mode="fill", fill_value=0)
        return lax.psum(found, rows)  # one device of each sum has something to add

    return hardware.by_device(look_up, (P(rows, columns), P(batch, time)), P(batch, time, columns))(table, token_ids)


def own_rows(ids: Int[Array, ...], count: int, axes: tuple[str, ...]) -> Int[Array, ...]:
    """Returns where the rows `ids` of a table stand in this device's part of it, `count` rows; `count` where they are
    not there.
    """
    if not axes:
        return ids
    local = ids - lax.axis_index(axes) * count
    return jnp.where((local >= 0) & (local < count), local, count)


def _axes(
    hardware: Hardware, shape: tuple[int, int], token_ids: Int[Array, "batch time"]
) -> tuple[tuple[str, ...], ...]:
    rows, columns = hardware.axes(TABLE, shape)
    batch, time, _ = hardware.axes(ACTIVATIONS["columns"], (*token_ids.shape, shape[1]))
    return rows, columns, batch, time


def _forward(
    hardware: Hardware, shape: tuple[int, int], table: jax.Array, token_ids: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _embed(hardware, shape, table, token_ids), (table, token_ids)  # of the table only the dtype is read


def _backward(
    hardware: Hardware, shape: tuple[int, int], residuals: tuple[jax.Array, jax.Array], d_rows: jax.Array
) -> tuple[jax.Array, None]:
    table, token_ids = residuals
    rows, columns, batch, time = _axes(hardware, shape, token_ids)

    def add_up(token_ids: jax.Array, d_rows: jax.Array) -> jax.Array:
        own = (shape[0] // hardware.parts(rows), d_rows.shape[-1])
        places = own_rows(token_ids, own[0], rows)
        if hardware.platform == "gpu":
            total = sum_by_row(places.reshape(-1), d_rows.astype(jnp.float32).reshape(-1, own[1]), own[0])
        else:
            total = jnp.zeros(own, jnp.float32).at[places].add(d_rows.astype(jnp.float32), mode="drop")
        return (lax.psum(total, batch + time) if batch + time else total).astype(table.dtype)

    by_device = hardware.by_device(add_up, (P(batch, time), P(batch, time, columns)), P(rows, columns))
    return by_device(token_ids, d_rows), None


_embed.defvjp(_forward, _backward)
