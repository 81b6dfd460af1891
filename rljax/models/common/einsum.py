"""Products with float32 sums and results, whatever the dtype of their operands."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from rljax.models.common.hardware import CPU, Hardware


def einsum_fp32(subscripts: str, a: jax.Array, b: jax.Array, hardware: Hardware = CPU) -> jax.Array:
    """Computes the ``einsum`` of two arrays, float or bfloat16, accumulated and returned in float32."""
    if hardware.platform == "cpu":
        # XLA has no bfloat16 x bfloat16 = float32 for a CPU without bfloat16 instructions.
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def product_in(dtype: DTypeLike, a: jax.Array, b: jax.Array, dimensions: Any, hardware: Hardware) -> jax.Array:
    """Computes ``lax.dot_general`` with results in `dtype`: that of the operands, or a wider one."""
    if a.dtype == dtype:
        return lax.dot_general(a, b, dimensions)
    if hardware.platform == "cpu":  # as above
        a, b = a.astype(dtype), b.astype(dtype)
    return lax.dot_general(a, b, dimensions, preferred_element_type=dtype)
