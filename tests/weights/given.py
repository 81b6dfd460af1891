"""What the tests of publishers publish."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

TENSORS = {"a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b.weight": jnp.ones(4, jnp.float32)}


class Failing(dict[str, Any]):
    """Tensors of which the second cannot be gathered."""

    def __getitem__(self, name: str) -> Any:
        if name == "b.weight":
            raise RuntimeError("out of memory")
        return super().__getitem__(name)
