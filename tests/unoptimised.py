"""What makes programs fast on a CPU takes most of the time of a test that runs each once, and has nothing to do with
what is tested. Files that are marked `optimised` compute as a user's run does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax
import jaxlib
import pytest
from jax._src import compiler

UNOPTIMISED = "jax_disable_most_optimizations"
BY_MLIR = {"xla_cpu_use_fusion_emitters": False} if jaxlib.version.__version_info__ < (0, 12) else {}
CHEAPER = {"xla_cpu_parallel_codegen_split_count": 1, **BY_MLIR}
"""Options of XLA that spare it cutting programs for threads that have no core, a tenth of its time, and compiling loops
for a CPU by MLIR, half of it or more. jaxlib 0.12 knows no other way for loops, and ends a process that asks for one.
"""
CHEAPER_FLAGS = tuple(f"--{name}={str(value).lower()}" for name, value in CHEAPER.items())
"""The same as `XLA_FLAGS` says it."""


@pytest.fixture(scope="module", autouse=True)
def unoptimised(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has XLA compile quickly what a file computes, here and in its child processes: they must agree to the bit."""
    if request.node.get_closest_marker("optimised"):
        jax.clear_caches()  # of programs that files before have compiled quickly
        yield
        return
    before, options_of = jax.config.read(UNOPTIMISED), compiler.get_compile_options

    def without_fusions(*arguments: Any, **keys: Any) -> Any:
        options = options_of(*arguments, **keys)
        options.env_option_overrides = [*options.env_option_overrides, *CHEAPER.items()]
        return options

    # XLA reads its flags once in a process: before they are set here, for child processes alone.
    _ = options_of(num_replicas=1, num_partitions=1).executable_build_options.debug_options
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(UNOPTIMISED.upper(), "1")
        patched.setenv("XLA_FLAGS", " ".join((os.environ.get("XLA_FLAGS", ""), *CHEAPER_FLAGS)))
        patched.setattr(compiler, "get_compile_options", without_fusions)
        jax.config.update(UNOPTIMISED, True)
        yield
    jax.config.update(UNOPTIMISED, before)
