"""Activations of an MLP's gate, by the names of `config.json`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import jax

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": functools.partial(jax.nn.gelu, approximate=True),
}
"""Swish (Ramachandran et al. 2017), GELU, and its approximation by a tanh (Hendrycks & Gimpel 2016)."""
