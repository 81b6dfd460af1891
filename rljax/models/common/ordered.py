"""Sums and selections that add in a fixed order, without a scatter: a GPU's adds in any order, or one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def sum_by_row(
    ids: Int[Array, " values"], values: Float[Array, "values width"], rows: int
) -> Float[Array, "rows width"]:
    """Returns for each row the sum of the values whose id it is, in their dtype; other ids are left out.

    The values are sorted by id, and summed within each id by a parallel scan.
    """
    order = jnp.argsort(ids)
    ids, values = ids[order], values[order]
    begins = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])

    def add(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] | right[0], jnp.where(right[0][:, None], right[1], left[1] + right[1])

    _, sums = lax.associative_scan(add, (begins, values))
    wanted = jnp.arange(rows)
    last = jnp.maximum(jnp.searchsorted(ids, wanted, side="right") - 1, 0)
    return jnp.where((ids[last] == wanted)[:, None], sums[last], 0)


def sum_by_stretch(values: Float[Array, "row time"], ids: Int[Array, "row time"]) -> Float[Array, "row time"]:
    """Returns at each place of a row the sum of the values of its id; ids rise along the row."""
    changes = ids[:, 1:] != ids[:, :-1]
    begins, ends = (jnp.pad(changes, ((0, 0), side), constant_values=True) for side in ((1, 0), (0, 1)))

    def add(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1])

    def keep(later: tuple[jax.Array, jax.Array], here: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return later[0] | here[0], jnp.where(here[0], here[1], later[1])

    _, sums = lax.associative_scan(add, (begins, values), axis=1)
    return lax.associative_scan(keep, (ends, sums), axis=1, reverse=True)[1]


@jax.custom_vjp
def select_places(
    values: Float[Array, "row time width"], places: Int[Array, "row place"]
) -> Float[Array, "row place width"]:
    """Returns the values at places that rise along each row, once each; beyond the row's length they mean nothing, and
    no gradient flows through them.
    """
    return jnp.take_along_axis(values, places[..., None], axis=1, mode="clip")


def _forward(values: jax.Array, places: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return select_places(values, places), (places, values)  # of the values only the shape is read


def _backward(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
    places, values = residuals
    times = jnp.arange(values.shape[1])
    index = jax.vmap(lambda row: jnp.searchsorted(row, times))(places)
    there = jnp.take_along_axis(places, index, axis=1, mode="clip") == times
    found = jnp.take_along_axis(cotangent, index[..., None], axis=1, mode="clip")
    return jnp.where(there[..., None], found, 0), None


select_places.defvjp(_forward, _backward)
