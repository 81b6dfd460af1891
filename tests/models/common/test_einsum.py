"""Products with float32 sums, on any processor."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np

from rljax.models.common.einsum import einsum_fp32
from tests.waiting import HANGS


def test_sums_are_float32() -> None:
    ones = jnp.ones((1, 1024), jnp.bfloat16)
    product = einsum_fp32("ij,kj->ik", ones, ones + 0.0078125)
    assert product.dtype == jnp.float32
    np.testing.assert_array_equal(product, 1032.0)  # 1024 (1 + 2^-7); bfloat16 sums stop growing at 256


def test_a_cpu_without_bfloat16_instructions_computes_it() -> None:
    """The CI machine is one: XLA compiles such a product there and then refuses to run it."""
    program = (
        "import jax.numpy as jnp; from rljax.models.common.einsum import einsum_fp32;"
        "x = jnp.ones((64, 64), jnp.bfloat16); print(einsum_fp32('ij,jk->ik', x, x).sum())"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=HANGS
    )
    assert ran.stdout.strip() == "262144.0", ran.stderr
