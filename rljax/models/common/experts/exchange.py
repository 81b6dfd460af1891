"""Exchange of tokens between devices that have different experts: each choice is sent to the device that has its
expert, and what that one computes is sent back. Nothing is dropped: a device has room for all choices of all devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from rljax.models.common.hardware import Hardware

AXIS = "expert"
Compute = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Of tokens, of the experts that each chose, counted from a device's first, and of their gates."""


class _Way(NamedTuple):
    """Rows that go from each device to each, as `jax.lax.ragged_all_to_all` takes them; of this device."""

    input_offsets: Int[Array, " devices"]
    send_sizes: Int[Array, " devices"]
    output_offsets: Int[Array, " devices"]
    recv_sizes: Int[Array, " devices"]


def sends_choices(hardware: Hardware, devices: int, picked: int) -> bool:
    """Returns whether choices are sent, and not all tokens gathered: that is less where a token has fewer experts than
    there are devices that have some. XLA has no such exchange for CPUs.
    """
    return hardware.platform != "cpu" and picked < devices


def exchanged(
    x: Float[Array, "batch time hidden"],
    chosen: Int[Array, "batch time picked"],
    gates: Float[Array, "batch time picked"],
    own: int,
    compute: Compute,
) -> Float[Array, "batch time hidden"]:
    """Computes Σ_k gates_k · what expert chosen_k makes of it, for the tokens of this device.

    Args:
        x: of the tokens.
        chosen: experts of each token, among those of all devices along `expert`.
        gates: of the chosen ones.
        own: experts of each device.
        compute: see `Compute`.
    """
    width, picked, devices = x.shape[-1], chosen.shape[-1], lax.axis_size(AXIS)
    ids = chosen.reshape(-1)
    order = jnp.argsort(ids)
    begins = jnp.searchsorted(ids[order], jnp.arange(own * devices + 1)).astype(jnp.int32)
    counts = lax.all_gather(jnp.diff(begins).reshape(devices, own), AXIS)  # from device, to device, expert of that one
    there, back = _ways(jnp.sum(counts, axis=-1))
    room = ids.shape[0] * devices if picked <= own else ids.shape[0] // picked * own * devices

    def sent(rows: jax.Array) -> jax.Array:
        return _sent(room, rows[order], there, back)

    rows = sent(jnp.repeat(x.reshape(-1, width), picked, axis=0))
    # They come in the order of the devices, and of each by expert.
    bounds = jnp.cumsum(counts[:, lax.axis_index(AXIS)].reshape(-1))
    index = jnp.searchsorted(bounds, jnp.arange(room), side="right")
    local = jnp.where(index < bounds.shape[0], index % own, own)
    computed = compute(rows[None], local[None, :, None], sent(gates.reshape(-1, 1))[None])[0]
    returned = _sent(ids.shape[0], computed, back, there)[jnp.argsort(order)]
    return jnp.sum(returned.reshape(*x.shape[:2], picked, width), axis=2)


def _ways(sizes: Int[Array, "devices devices"]) -> tuple[_Way, _Way]:
    """Returns the way of so many rows from each device to each, and the way back."""
    here = lax.axis_index(AXIS)
    begins = jnp.cumsum(sizes, axis=1) - sizes  # of what each device has for each, in its rows sorted by device
    lands = jnp.cumsum(sizes, axis=0) - sizes  # and in the rows of the device that gets it
    there = _Way(begins[here], sizes[here], lands[here], sizes[:, here])
    return there, _Way(lands[:, here], sizes[:, here], begins[:, here], sizes[here])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sent(room: int, rows: Float[Array, "rows width"], way: _Way, back: _Way) -> Float[Array, "room width"]:
    """Sends rows along `expert`; its gradient comes back the other way."""
    return lax.ragged_all_to_all(rows, jnp.zeros((room, rows.shape[1]), rows.dtype), *way, axis_name=AXIS)


def _forward(room: int, rows: jax.Array, way: _Way, back: _Way) -> tuple[jax.Array, tuple[jax.Array, _Way, _Way]]:
    return _sent(room, rows, way, back), (rows, way, back)  # of the rows only the shape is read


def _backward(room: int, residuals: tuple[jax.Array, _Way, _Way], cotangent: jax.Array) -> tuple[jax.Array, None, None]:
    del room
    rows, way, back = residuals
    return _sent(rows.shape[0], cotangent, back, way), None, None


_sent.defvjp(_forward, _backward)
