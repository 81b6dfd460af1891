"""Matrix product of activations and a weight, with a backward pass in the layouts that XLA multiplies fastest.

A weight may be wider than the activations: it is then cast for the product, and its gradient is computed, and summed
over devices, in its own dtype.
"""

from __future__ import annotations

import functools

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from rljax.models.common.einsum import product_in
from rljax.models.common.hardware import Hardware
from rljax.models.common.lora import Adapted

PRODUCT = "product"
"""Name of every product for rematerialisation policies."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul(
    hardware: Hardware, x: Float[Array, "... rows"], weight: Float[Array, "rows columns"]
) -> Float[Array, "... columns"]:
    del hardware
    return lax.dot_general(x, weight.astype(x.dtype), (((x.ndim - 1,), (0,)), ((), ())))


def _forward(hardware: Hardware, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _matmul(hardware, x, weight), (x, weight)


def _backward(
    hardware: Hardware, residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = residuals
    d_x = lax.dot_general(cotangent, weight.astype(x.dtype), (((x.ndim - 1,), (1,)), ((), ())))
    # JAX's own rule makes the gradient transposed and turns it. XLA on CPU copies activations for that, as it does for
    # several contracted axes; elsewhere the axes stay separate, since each may be sharded over devices of its own.
    if hardware.platform == "cpu":
        x, cotangent = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    leading = tuple(range(x.ndim - 1))
    d_weight = product_in(weight.dtype, x, cotangent, ((leading, leading), ((), ())), hardware)
    return d_x, d_weight


_matmul.defvjp(_forward, _backward)


def linear(
    x: Float[Array, "... rows"], weight: Float[Array, "rows columns"] | Adapted, hardware: Hardware
) -> Float[Array, "... columns"]:
    """Computes ``x @ weight`` for a weight stored [in, out]; result in the dtype of `x`, named `PRODUCT`. An adapter's
    two factors are multiplied one after the other: its change of the weight is never there.
    """
    if not isinstance(weight, Adapted):
        return checkpoint_name(_matmul(hardware, x, weight), PRODUCT)
    narrow = checkpoint_name(_matmul(hardware, weight.shown(x), weight.a), PRODUCT)
    change = weight.scale * _matmul(hardware, weight.counted(narrow), weight.b)
    return checkpoint_name(_matmul(hardware, x, weight.base) + change, PRODUCT)
