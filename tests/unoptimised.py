"""What makes programs fast on a CPU takes most of the time of a test that runs each once, and has nothing to do with
what is tested: see tests/e2e for runs that are computed as a user's are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax._src import compiler

UNOPTIMISED = "jax_disable_most_optimizations"
FUSIONS = "xla_cpu_use_fusion_emitters"
"""XLA's way to compile loops for a CPU by MLIR: without it compiling takes half of the time, or less."""


@pytest.fixture(scope="module", autouse=True)
def unoptimised() -> Iterator[None]:
    """Has XLA compile quickly what a room computes, here and in its child processes: they must agree to the bit."""
    before, options_of = jax.config.read(UNOPTIMISED), compiler.get_compile_options

    def without_fusions(*arguments: Any, **keys: Any) -> Any:
        options = options_of(*arguments, **keys)
        options.env_option_overrides = [*options.env_option_overrides, (FUSIONS, False)]
        return options

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(UNOPTIMISED.upper(), "1")
        patched.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} --{FUSIONS}=false")
        patched.setattr(compiler, "get_compile_options", without_fusions)
        jax.config.update(UNOPTIMISED, True)
        yield
    jax.config.update(UNOPTIMISED, before)
