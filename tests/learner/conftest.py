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
    """Has XLA compile quickly what this room compiles, and as ever what others do."""
    before = jax.config.read(UNOPTIMISED)
    jax.config.update(UNOPTIMISED, True)
    yield
    jax.config.update(UNOPTIMISED, before)
