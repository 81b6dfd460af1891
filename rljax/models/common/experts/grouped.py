"""Product of rows that are sorted by group with the matrix of their group: one function, a body for each platform.

`blocks` goes through the groups in blocks of rows, and so does the work of the rows that there are, whatever their
number in a group. `ragged` is `jax.lax.ragged_dot`, which a TPU has a kernel for; XLA makes of it on a CPU, and on a
GPU, a product of all rows with the matrices of all groups.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from rljax.models.common.einsum import product_in
from rljax.models.common.hardware import Hardware

_SMALLEST_BLOCK, _LARGEST_BLOCK = 8, 256


def grouped_product(
    rows: Float[Array, "rows width"],
    matrices: Float[Array, "groups width columns"],
    bounds: Int[Array, " groups+1"],
    hardware: Hardware,
    body: str | None = None,
) -> Float[Array, "rows columns"]:
    """Computes ``rows[i] @ matrices[g]`` for every row i of each group g.

    Args:
        rows: sorted by group.
        matrices: of the groups; cast to the dtype of the rows. Their gradient is computed in their own dtype.
        bounds: row at which each group begins, and at which the last one ends. A group may have no rows, or all.
        hardware: that it is computed on.
        body: ``blocks`` or ``ragged``; None: the platform's.

    Returns:
        Products in the dtype of the rows; 0 of rows that no group has.
    """
    return _product(hardware, body or body_for(hardware), rows, matrices, bounds)


def body_for(hardware: Hardware) -> str:
    """Returns the body of a platform."""
    return "ragged" if hardware.platform == "tpu" else "blocks"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(hardware: Hardware, body: str, rows: jax.Array, matrices: jax.Array, bounds: jax.Array) -> jax.Array:
    return _multiply(hardware, body, rows, matrices.astype(rows.dtype), bounds)


def _forward(
    hardware: Hardware, body: str, rows: jax.Array, matrices: jax.Array, bounds: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _product(hardware, body, rows, matrices, bounds), (rows, matrices, bounds)


def _backward(
    hardware: Hardware, body: str, residuals: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, matrices, bounds = residuals
    d_rows = _multiply(hardware, body, cotangent, matrices.astype(rows.dtype).swapaxes(1, 2), bounds)
    if body == "ragged":
        rows, cotangent = _of_groups(rows, bounds), _of_groups(cotangent, bounds)
        d_matrices = lax.ragged_dot_general(
            rows,
            cotangent,
            _sizes(bounds),
            lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []),
            preferred_element_type=matrices.dtype,
        )[: matrices.shape[0]]
    else:
        d_matrices = _outer_by_block(hardware, rows, cotangent, bounds).astype(matrices.dtype)
    return d_rows, d_matrices, None


_product.defvjp(_forward, _backward)


def _multiply(hardware: Hardware, body: str, rows: jax.Array, matrices: jax.Array, bounds: jax.Array) -> jax.Array:
    if body == "ragged":
        more = max(2 - matrices.shape[0], 0)
        several = jnp.pad(matrices, ((0, more), (0, 0), (0, 0)))
        return _of_groups(lax.ragged_dot(rows, several, _sizes(bounds)), bounds)
    return _multiply_by_block(hardware, rows, matrices, bounds)


def _sizes(bounds: jax.Array) -> jax.Array:
    """Returns the sizes of the groups, at least two: XLA does not compile one group for a TPU."""
    sizes = jnp.diff(bounds)
    return jnp.pad(sizes, (0, max(2 - sizes.shape[0], 0)))


def _of_groups(rows: jax.Array, bounds: jax.Array) -> jax.Array:
    """Returns the rows, with zeros where no group has one."""
    index = jnp.arange(rows.shape[0])
    return jnp.where(((index >= bounds[0]) & (index < bounds[-1]))[:, None], rows, 0)


class _Blocks:
    """Division of the rows into blocks of one group each. The last block of a group runs into the next group's rows,
    and is computed before them.
    """

    def __init__(self, hardware: Hardware, rows: int, bounds: jax.Array) -> None:
        groups = bounds.shape[0] - 1
        mean = max(rows // max(groups, 1), 1)
        self.size = min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, 1 << (mean.bit_length() - 2 if mean > 1 else 0)))
        most = rows // self.size + groups
        each = -(-jnp.diff(bounds) // self.size)
        ends = jnp.cumsum(each)
        index = jnp.arange(most)
        self.group = jnp.minimum(jnp.searchsorted(ends, index, side="right"), groups - 1)
        begins = jnp.asarray(bounds)[self.group] + (index - (ends - each)[self.group]) * self.size
        self.begin = jnp.where(index < ends[-1], begins, rows)  # beyond all rows
        self.end = jnp.asarray(bounds)[self.group + 1]
        # A GPU asks the host before every turn of a loop whose length is data.
        self.count = most if hardware.platform == "gpu" else ends[-1]

    def padded(self, rows: jax.Array) -> jax.Array:
        """Returns the rows with room for a block beyond the last."""
        return jnp.pad(rows, ((0, self.size), (0, 0)))

    def take(self, padded: jax.Array, block: jax.Array) -> jax.Array:
        """Returns the rows of a block; zeros where they are another group's."""
        begin, end = self.begin[block], self.end[block]
        rows = lax.dynamic_slice_in_dim(padded, begin, self.size)
        return jnp.where((begin + jnp.arange(self.size) < end)[:, None], rows, 0)


def _multiply_by_block(hardware: Hardware, rows: jax.Array, matrices: jax.Array, bounds: jax.Array) -> jax.Array:
    blocks = _Blocks(hardware, rows.shape[0], bounds)
    padded = blocks.padded(rows)

    def multiply(block: jax.Array, products: jax.Array) -> jax.Array:
        matrix = lax.dynamic_index_in_dim(matrices, blocks.group[block], keepdims=False)
        return lax.dynamic_update_slice_in_dim(products, blocks.take(padded, block) @ matrix, blocks.begin[block], 0)

    products = jnp.zeros((padded.shape[0], matrices.shape[2]), rows.dtype)
    return lax.fori_loop(0, blocks.count, multiply, products)[: rows.shape[0]]


def _outer_by_block(
    hardware: Hardware, rows: jax.Array, cotangent: jax.Array, bounds: jax.Array
) -> Float[Array, "groups width columns"]:
    """Sums, in float32, the outer products of the rows of each group."""
    blocks = _Blocks(hardware, rows.shape[0], bounds)
    padded, cotangents = blocks.padded(rows), blocks.padded(cotangent)

    def add(block: jax.Array, total: jax.Array) -> jax.Array:
        pair, group = (blocks.take(padded, block), blocks.take(cotangents, block)), blocks.group[block]
        outer = product_in(jnp.float32, *pair, (((0,), (0,)), ((), ())), hardware)
        summed = lax.dynamic_index_in_dim(total, group, keepdims=True) + outer
        return lax.dynamic_update_slice_in_dim(total, summed, group, 0)

    shape = (bounds.shape[0] - 1, rows.shape[1], cotangent.shape[1])
    return lax.fori_loop(0, blocks.count, add, jnp.zeros(shape, jnp.float32))
