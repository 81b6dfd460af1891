"""Decoder layer that the families share or derive theirs from."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rljax.models.common.activation import ACTIVATIONS
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.linear import linear
from rljax.models.common.norm import rms_norm, spread
from rljax.models.common.rope import rotate

LAYER_NAMES = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "output_bias": "self_attn.o_proj.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
"""Hugging Face name of each parameter of a layer, within its layer; a family may have further ones."""


def constant(value: float, size: int) -> nnx.Param:
    """Makes a float32 vector parameter that begins as one value."""
    return nnx.Param(jnp.full((size,), value, jnp.float32))


class Matrix(Protocol):
    """Makes a random matrix parameter [in, out], or a stack of so many."""

    def __call__(self, rows: int, columns: int, *stacked: int) -> nnx.Param:
        """Returns the parameter, float32."""
        ...


class Block(nnx.Module):
    """One decoder layer: attention and gated MLP, each behind an RMS norm and a residual.

    Attributes:
        biased_output: whether the attention's output has a bias where query, key and value have one.
        norm: of the family, as `rms_norm`; that of the model's last hidden states too.
        norm_start: the weight of a norm by which it does not scale.
    """

    biased_output: ClassVar[bool] = True
    norm: ClassVar[Any] = staticmethod(rms_norm)
    norm_start: ClassVar[float] = 1.0

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        a = architecture
        self.architecture = a
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim

        def matrix(rows: int, columns: int, *stacked: int) -> nnx.Param:
            shape = (*stacked, rows, columns)
            return nnx.Param(rows**-0.5 * jax.random.normal(rngs.params(), shape, jnp.float32))

        self.attention_norm = constant(self.norm_start, a.hidden_size)
        self.query = matrix(a.hidden_size, queries)
        self.key = matrix(a.hidden_size, keys)
        self.value = matrix(a.hidden_size, keys)
        self.output = matrix(queries, a.hidden_size)
        if a.attention_bias:
            self.query_bias = constant(0.0, queries)
            self.key_bias = constant(0.0, keys)
            self.value_bias = constant(0.0, keys)
            if self.biased_output:
                self.output_bias = constant(0.0, a.hidden_size)
        self.mlp_norm = constant(self.norm_start, a.hidden_size)
        self.make_mlp(matrix)

    def make_mlp(self, matrix: Matrix) -> None:
        """Makes the parameters of the MLP; a family may have others."""
        a = self.architecture
        self.gate = matrix(a.hidden_size, a.intermediate_size)
        self.up = matrix(a.hidden_size, a.intermediate_size)
        self.down = matrix(a.intermediate_size, a.hidden_size)
        if a.mlp_bias:
            self.gate_bias = constant(0.0, a.intermediate_size)
            self.up_bias = constant(0.0, a.intermediate_size)
            self.down_bias = constant(0.0, a.hidden_size)

    def project(
        self,
        x: Float[Array, "batch time hidden"],
        cos: Float[Array, "batch time 1 pairs"],
        sin: Float[Array, "batch time 1 pairs"],
        hardware: Hardware,
    ) -> tuple[Float[Array, "batch time heads head_dim"], ...]:
        """Projects the layer's input to queries, keys and values; rotates the first two."""
        a = self.architecture
        normed = hardware.gathered(self.norm(x, self.attention_norm[...], a.rms_eps))
        query, key, value = (linear(normed, w[...], hardware) for w in (self.query, self.key, self.value))
        if a.attention_bias:
            query = query + spread(self.query_bias[...], query)
            key, value = key + spread(self.key_bias[...], key), value + spread(self.value_bias[...], value)
        query, key, value = (
            hardware.constrain(y.reshape(*x.shape[:2], -1, a.head_dim), "heads") for y in (query, key, value)
        )
        query, key = self.before_rotation(query, key)
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def before_rotation(
        self,
        query: Float[Array, "batch time heads head_dim"],
        key: Float[Array, "batch time kv_heads head_dim"],
    ) -> tuple[Float[Array, "batch time heads head_dim"], Float[Array, "batch time kv_heads head_dim"]]:
        """Returns the queries and keys as they are rotated; a family may change them here."""
        return query, key

    def finish(
        self,
        x: Float[Array, "batch time hidden"],
        attended: Float[Array, "batch time heads head_dim"],
        hardware: Hardware,
        routes: Int[Array, "batch time picked"] | None = None,
    ) -> Float[Array, "batch time hidden"]:
        """Returns the layer's output, given its input and what its heads attended to; for ``routes``, of a layer with
        experts, see `rljax.models.common.experts.routing.route`.
        """
        x = hardware.residual(x + self.mix(attended, hardware))
        normed = hardware.gathered(self.norm(x, self.mlp_norm[...], self.architecture.rms_eps))
        return hardware.residual(x + self.mlp(normed, hardware, routes))

    def mix(
        self, attended: Float[Array, "batch time heads head_dim"], hardware: Hardware
    ) -> Float[Array, "batch time hidden"]:
        """Returns what attention adds to the residual stream, given what the heads attended to."""
        mixed = linear(attended.reshape(*attended.shape[:2], -1), self.output[...], hardware)
        if self.architecture.attention_bias and self.biased_output:
            mixed = mixed + spread(self.output_bias[...], mixed)
        return mixed

    def mlp(
        self,
        normed: Float[Array, "batch time hidden"],
        hardware: Hardware,
        routes: Int[Array, "batch time picked"] | None = None,
    ) -> Float[Array, "batch time hidden"]:
        """Returns what the MLP adds to the residual stream, given its normalised input. One MLP has no ``routes``."""
        del routes
        a = self.architecture
        gate = linear(normed, self.gate[...], hardware)
        opened = ACTIVATIONS[a.activation](gate + spread(self.gate_bias[...], gate) if a.mlp_bias else gate)
        up = linear(normed, self.up[...], hardware)
        inner = opened * (up + spread(self.up_bias[...], up) if a.mlp_bias else up)
        added = linear(hardware.constrain(inner, "mlp"), self.down[...], hardware)
        return added + spread(self.down_bias[...], added) if a.mlp_bias else added
