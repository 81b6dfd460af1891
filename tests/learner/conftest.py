"""LLVM's optimisations take half of the time here and have nothing to do with what is tested: see tests/e2e for runs
that are computed as a user's are.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

UNOPTIMISED = "jax_disable_most_optimizations"


@pytest.fixture(scope="module", autouse=True)
def unoptimised() -> Iterator[None]:
    """Has XLA compile quickly what this room computes, here and in its child processes: they must agree to the bit."""
    before = jax.config.read(UNOPTIMISED)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(UNOPTIMISED.upper(), "1")
        jax.config.update(UNOPTIMISED, True)
        yield
    jax.config.update(UNOPTIMISED, before)
