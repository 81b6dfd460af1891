"""Arrays on the devices of a mesh and back, of one process or of several, each of which has some of the devices."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = TypeVar("Tree")


def on_mesh(array: np.ndarray, sharding: NamedSharding, *, may_alias: bool | None = None) -> jax.Array:
    """Puts an array of the host on a mesh. Of a mesh of several processes each puts its own shards there: all of them
    are to call it with the same array.

    Args:
        array: whole.
        sharding: of the result.
        may_alias: as `jax.device_put` takes it.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding, may_alias=may_alias)
    # Not by `device_put`, which would compare what each process has by sending all of it round.
    return jax.make_array_from_callback(np.shape(array), sharding, lambda index: np.array(array[index]))


def on_device(tensor: Any, transposed: bool, *, dtype: str, device: jax.Device) -> jax.Array:
    """Puts a tensor onto a device in a dtype, with the axes of a matrix exchanged where it is told so."""
    return jax.block_until_ready(_converted(jax.device_put(tensor, device), transposed=transposed, dtype=dtype))


@functools.partial(jax.jit, static_argnames=("transposed", "dtype"))
def _converted(tensor: jax.Array, *, transposed: bool, dtype: str) -> jax.Array:
    return (tensor.swapaxes(0, 1) if transposed else tensor).astype(jnp.dtype(dtype))


def readable(tree: Tree) -> Tree:
    """Returns a pytree whose arrays this process can read: one that is spread over several processes is put together on
    each device, and is then that of the first one here. All of the processes are to call it with the same arrays.
    """

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        whole = leaf
        if not leaf.is_fully_replicated:
            assert isinstance(leaf.sharding, NamedSharding)
            whole = _put_together(leaf.sharding.mesh)(leaf)
        return whole.addressable_data(0)

    return jax.tree.map(one, tree)


@functools.cache
def _put_together(mesh: Mesh) -> Any:
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, P()))
