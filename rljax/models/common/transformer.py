"""The one transformer: a Flax NNX module for all families, used as functions of a plain parameter pytree.

Parameters (float32 masters), with layers stacked on a leading axis L:

    embedding [V, D]
    layers/attention_norm [L, D]       layers/mlp_norm [L, D]
    layers/query [L, D, H*K]           layers/key, layers/value [L, D, G*K]      layers/output [L, H*K, D]
    layers/query_bias [L, H*K]         layers/key_bias, value_bias [L, G*K]      layers/output_bias [L, D]
    layers/gate, layers/up [L, D, F]   layers/down [L, F, D]
    final_norm [D]                     head [D, V] (untied models only)

A family may add parameters to the layers: see `rljax.models.common.family_parts`.

V vocabulary, D hidden, H heads, G key-value heads, K head width, F MLP width. Matrices are [in, out].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import attention
from rljax.models.common.attention.blockwise import ATTENDED
from rljax.models.common.attention.spans import causal_spans
from rljax.models.common.embedding import embed
from rljax.models.common.family_parts import parts_of
from rljax.models.common.hardware import CPU, Hardware
from rljax.models.common.linear import PRODUCT, linear
from rljax.models.common.norm import rms_norm, spread
from rljax.models.common.rope import rotate, rotation

Params = dict[str, Any]
"""Nested dict of arrays, as in the table above."""

_SAVED = {"none": (PRODUCT, ATTENDED), "dots": (PRODUCT,), "full": ()}  # what each remat policy keeps


def constant(value: float, size: int) -> nnx.Param:
    """Makes a float32 vector parameter that begins as one value."""
    return nnx.Param(jnp.full((size,), value, jnp.float32))


class Block(nnx.Module):
    """One decoder layer: attention and gated MLP, each behind an RMS norm and a residual.

    Attributes:
        biased_output: whether the attention's output has a bias where query, key and value have one.
    """

    biased_output: ClassVar[bool] = True

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        a = architecture
        self.architecture = a
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim

        def matrix(rows: int, columns: int) -> nnx.Param:
            return nnx.Param(rows**-0.5 * jax.random.normal(rngs.params(), (rows, columns), jnp.float32))

        self.attention_norm = constant(1.0, a.hidden_size)
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
        self.mlp_norm = constant(1.0, a.hidden_size)
        self.gate = matrix(a.hidden_size, a.intermediate_size)
        self.up = matrix(a.hidden_size, a.intermediate_size)
        self.down = matrix(a.intermediate_size, a.hidden_size)

    def project(
        self,
        x: Float[Array, "batch time hidden"],
        cos: Float[Array, "batch time 1 pairs"],
        sin: Float[Array, "batch time 1 pairs"],
        hardware: Hardware,
    ) -> tuple[Float[Array, "batch time heads head_dim"], ...]:
        """Projects the layer's input to queries, keys and values; rotates the first two."""
        a = self.architecture
        normed = hardware.gathered(rms_norm(x, self.attention_norm[...], a.rms_eps))
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
    ) -> Float[Array, "batch time hidden"]:
        """Returns the layer's output, given its input and what its heads attended to."""
        a = self.architecture
        mixed = linear(attended.reshape(*x.shape[:2], -1), self.output[...], hardware)
        if a.attention_bias and self.biased_output:
            mixed = mixed + spread(self.output_bias[...], mixed)
        x = hardware.residual(x + mixed)
        normed = hardware.gathered(rms_norm(x, self.mlp_norm[...], a.rms_eps))
        inner = jax.nn.silu(linear(normed, self.gate[...], hardware)) * linear(normed, self.up[...], hardware)
        return hardware.residual(x + linear(hardware.constrain(inner, "mlp"), self.down[...], hardware))


class Transformer(nnx.Module):
    """Embedding, stacked layers, final norm and, where it is not tied, the output head."""

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        a = architecture
        stacked = nnx.split_rngs(splits=a.num_layers)(nnx.vmap(lambda layer_rngs: parts_of(a).block(a, layer_rngs)))
        self.embedding = nnx.Param(
            a.hidden_size**-0.5 * jax.random.normal(rngs.params(), (a.vocab_size, a.hidden_size), jnp.float32)
        )
        self.layers = stacked(rngs)
        self.final_norm = nnx.Param(jnp.ones((a.hidden_size,), jnp.float32))
        if not a.tie_embeddings:
            self.head = nnx.Param(
                a.hidden_size**-0.5 * jax.random.normal(rngs.params(), (a.hidden_size, a.vocab_size), jnp.float32)
            )


def init_params(architecture: Architecture, seed: int | Int[Array, ""]) -> Params:
    """Returns random float32 parameters: normal with variance 1/width of what they read (LeCun et
    al. 1998), norms 1, biases 0.

    Not the families' own deviation of 0.02, which suits widths in the thousands: a narrow model stalls on it.
    """
    model = Transformer(architecture, nnx.Rngs(jax.random.key(seed)))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@functools.cache
def abstract_params(architecture: Architecture) -> Params:
    """Returns the shapes and dtypes of `init_params`, as `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(functools.partial(init_params, architecture), 0)


@functools.cache
def _block_graph(architecture: Architecture) -> tuple[Any, Any]:
    graph, state = nnx.split(nnx.eval_shape(lambda: parts_of(architecture).block(architecture, nnx.Rngs(0))))
    return graph, jax.tree.structure(state)


def bind_block(architecture: Architecture, weights: Params, dtype: DTypeLike | None = None) -> Block:
    """Binds one slice of ``params["layers"]``, cast to `dtype` if there is one, to a layer and returns it."""
    graph, structure = _block_graph(architecture)
    leaves = [w if dtype is None else w.astype(dtype) for w in jax.tree.leaves(weights)]
    # A new state each time: threads trace side by side.
    return nnx.merge(graph, jax.tree.unflatten(structure, leaves))


def hidden_states(
    params: Params,
    architecture: Architecture,
    token_ids: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    segment_ids: Int[Array, "batch time"],
    *,
    dtype: DTypeLike = jnp.float32,
    remat: str = "none",
    hardware: Hardware = CPU,
) -> Float[Array, "batch time hidden"]:
    """Returns the normalised output of the last layer: what the output head reads.

    Args:
        params: as `init_params` makes them; cast to `dtype` where they are used. Gradients are summed in their dtype.
        architecture: the model's shape.
        token_ids: packed rows of tokens.
        positions: place of each token within its own trajectory, counted from 0.
        segment_ids: trajectory of each token within its row, 0 for padding. Tokens see their own segment only.
        dtype: of the computation; norms and attention scores are float32 always.
        remat: what the backward pass recomputes: ``none`` (no matrix product but attention's own), ``dots`` (all but
            the products with weights) or ``full`` (whole layers).
        hardware: that it is computed on.

    Returns:
        Activations of type `dtype`. Those of padding mean nothing.
    """
    cos, sin = rotation(positions, architecture)
    spans = causal_spans(segment_ids)

    def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        block = bind_block(architecture, weights)
        query, key, value = block.project(x, cos, sin, hardware)
        return block.finish(x, attention(query, key, value, spans, hardware), hardware), None

    x = hardware.residual(embed(params["embedding"], token_ids, hardware).astype(dtype))
    x, _ = jax.lax.scan(rematerialised(layer, remat), x, params["layers"])
    return hardware.gathered(rms_norm(x, params["final_norm"], architecture.rms_eps))


def rematerialised(layer: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Wraps a scanned layer so that its backward pass recomputes what the policy `remat` names.

    Raises:
        ValueError: for an unknown policy.
    """
    if remat not in _SAVED:
        raise ValueError(f"remat {remat!r} is unknown; choose {', '.join(_SAVED)}")
    # Even `none` recomputes norms, rotations and gates: on CPU that is cheaper than storing them.
    policy = jax.checkpoint_policies.save_only_these_names(*_SAVED[remat])
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)


def output_head(params: Params, architecture: Architecture) -> Float[Array, "hidden vocabulary"]:
    """Returns the matrix that turns hidden states into logits: the head, or the transposed
    embedding where they are tied.
    """
    return params["embedding"].T if architecture.tie_embeddings else params["head"]
