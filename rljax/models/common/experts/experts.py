"""Mixture of experts: every token goes through the gated MLPs that the router chose for it, and through no other.

Nothing is dropped: there is no capacity. The choices of all tokens are sorted by expert, computed group by group, and
put back. Over the mesh axis `expert` a device has some of the experts. Either it gathers the tokens of the devices
along that axis, computes what its own experts have to do for them, and the results are summed and scattered back; or
the choices are sent to who has their experts, and the results back: see `exchange`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from rljax.models.common.activation import ACTIVATIONS as ACTIVATIONS_OF_GATES
from rljax.models.common.experts.exchange import exchanged, sends_choices
from rljax.models.common.experts.grouped import grouped_product
from rljax.models.common.hardware import ACTIVATIONS, EXPERT_COLUMNS, EXPERT_ROWS, Hardware
from rljax.models.common.linear import PRODUCT


def mixture(
    x: Float[Array, "batch time hidden"],
    chosen: Int[Array, "batch time picked"],
    gates: Float[Array, "batch time picked"],
    weights: tuple[
        Float[Array, "experts hidden width"], Float[Array, "experts hidden width"], Float[Array, "experts width hidden"]
    ],
    hardware: Hardware,
    activation: str = "silu",
) -> Float[Array, "batch time hidden"]:
    """Computes Σ_k gates_k · MLP of expert chosen_k, for each token.

    Args:
        x: of the tokens.
        chosen: experts of each token, each at most once.
        gates: what each expert's output is multiplied by.
        weights: gate, up and down of all experts, [in, out].
        hardware: that it is computed on.
        activation: of the experts' gates, by its name in `ACTIVATIONS`.

    Returns:
        The sums, in the dtype of `x`.
    """
    batch, time, _ = hardware.axes(ACTIVATIONS["hidden"], x.shape)
    own, rows, columns = hardware.axes(EXPERT_COLUMNS, weights[0].shape)
    shared = tuple(axis for axis in own if axis in batch)  # tokens are cut over them too
    tokens = P(batch, time, None)
    computed = functools.partial(_computed, hardware=hardware, activation=activation)

    def part(x: jax.Array, chosen: jax.Array, gates: jax.Array, *weights: jax.Array) -> jax.Array:
        gate, up = (_whole(w, rows, 1) for w in weights[:2])
        down = _whole(weights[2], rows, 2)
        if shared and sends_choices(hardware, hardware.parts(shared), chosen.shape[-1]):
            compute = functools.partial(computed, weights=(gate, up, down))
            summed = exchanged(x, chosen, gates, gate.shape[0], compute)
            return lax.psum(summed, columns) if columns else summed
        x, chosen, gates = (_whole(values, shared, 0) for values in (x, chosen, gates))
        first = lax.axis_index(own) * gate.shape[0] if own else 0
        summed = computed(x, chosen - first, gates, (gate, up, down))
        if partial := tuple(axis for axis in own + columns if axis not in shared):
            summed = lax.psum(summed, partial)
        return lax.psum_scatter(summed, shared, scatter_dimension=0, tiled=True) if shared else summed

    laid = (P(*hardware.axes(rule, w.shape)) for rule, w in zip(_RULES, weights, strict=True))
    return hardware.by_device(part, (tokens, tokens, tokens, *laid), tokens)(x, chosen, gates, *weights)


_RULES = (EXPERT_COLUMNS, EXPERT_COLUMNS, EXPERT_ROWS)


def _computed(
    x: jax.Array,
    chosen: Int[Array, "batch time picked"],
    gates: jax.Array,
    weights: tuple[jax.Array, jax.Array, jax.Array],
    hardware: Hardware,
    activation: str,
) -> jax.Array:
    """Computes what the experts of `weights` add for each token; ``chosen`` counts from their first, others are left
    out.
    """
    experts, width, picked = weights[0].shape[0], x.shape[-1], chosen.shape[-1]
    product = functools.partial(grouped_product, hardware=hardware)
    ids = jnp.where((chosen >= 0) & (chosen < experts), chosen, experts).reshape(-1)
    order = jnp.argsort(ids)
    places = jnp.argsort(order)
    bounds = jnp.searchsorted(ids[order], jnp.arange(experts + 1)).astype(jnp.int32)
    rows = _permuted(jnp.repeat(x.reshape(-1, width), picked, axis=0), order, places)
    gate, up = (checkpoint_name(product(rows, w, bounds), PRODUCT) for w in weights[:2])
    # Scaled here, and not after the last product: the backward pass then needs nothing of that one's result.
    scale = _permuted(gates.reshape(-1, 1), order, places)
    inner = (ACTIVATIONS_OF_GATES[activation](gate) * up * scale).astype(x.dtype)
    added = _permuted(product(inner, weights[2], bounds), places, order)
    return jnp.sum(added.reshape(*x.shape[:2], picked, width), axis=2)


@jax.custom_vjp
def _permuted(
    rows: Float[Array, "rows width"], order: Int[Array, " rows"], places: Int[Array, " rows"]
) -> Float[Array, "rows width"]:
    """Returns ``rows[order]``; ``places`` is the inverse of the order, so that the gradient is no scatter."""
    return rows[order]


def _forward(rows: jax.Array, order: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
    return rows[order], places


def _backward(places: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, None, None]:
    return cotangent[places], None, None


_permuted.defvjp(_forward, _backward)


def _whole(x: jax.Array, axes: tuple[str, ...], dimension: int) -> jax.Array:
    return lax.all_gather(x, axes, axis=dimension, tiled=True) if axes else x
