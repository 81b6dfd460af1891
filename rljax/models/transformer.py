"""The one transformer: a Flax NNX module for all families, used as functions of a plain parameter pytree.

Parameters (float32 masters), with layers stacked on a leading axis L; frozen ones may be a tuple of L arrays instead:

    embedding [V, D]
    layers/attention_norm [L, D]       layers/mlp_norm [L, D]
    layers/query [L, D, H*K]           layers/key, layers/value [L, D, G*K]      layers/output [L, H*K, D]
    layers/query_bias [L, H*K]         layers/key_bias, value_bias [L, G*K]      layers/output_bias [L, D]
    layers/gate, layers/up [L, D, F]   layers/down [L, F, D]
    layers/gate_bias, layers/up_bias [L, F]                   layers/down_bias [L, D]
    layers/router [L, D, E]            layers/expert_gate, expert_up [L, E, D, F]     layers/expert_down [L, E, F, D]
                                       (in the place of gate, up and down where layers have experts)
    final_norm [D]                     head [D, V] (untied models only)

A family may add parameters to the layers: see `rljax.models.families.family.Family`.

V vocabulary, D hidden, H heads, G key-value heads, K head width, F MLP width, E experts. Matrices are [in, out].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import Window, attention
from rljax.models.common.attention.blockwise import ATTENDED
from rljax.models.common.attention.spans import causal_spans
from rljax.models.common.block import Block, constant
from rljax.models.common.embedding import embed
from rljax.models.common.experts.block import ExpertsBlock
from rljax.models.common.experts.routing import RouterSums, router_sums
from rljax.models.common.hardware import CPU, Hardware
from rljax.models.common.linear import PRODUCT
from rljax.models.common.lora import Adapted, parted, whole_layer
from rljax.models.common.params import Params
from rljax.models.common.rope import rotation
from rljax.models.families.registry import FAMILIES

_SAVED = {"none": (PRODUCT, ATTENDED), "dots": (PRODUCT,), "full": ()}  # what each remat policy keeps


class Transformer(nnx.Module):
    """Embedding, stacked layers, final norm and, where it is not tied, the output head."""

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        a = architecture
        stacked = nnx.split_rngs(splits=a.num_layers)(
            nnx.vmap(lambda layer_rngs: FAMILIES[a.family].block(a, layer_rngs))
        )
        self.embedding = nnx.Param(
            a.hidden_size**-0.5 * jax.random.normal(rngs.params(), (a.vocab_size, a.hidden_size), jnp.float32)
        )
        self.layers = stacked(rngs)
        self.final_norm = constant(FAMILIES[a.family].block.norm_start, a.hidden_size)
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
    graph, state = nnx.split(nnx.eval_shape(lambda: FAMILIES[architecture.family].block(architecture, nnx.Rngs(0))))
    return graph, jax.tree.structure(state)


def bind_block(architecture: Architecture, weights: Params, dtype: DTypeLike | None = None) -> Block:
    """Binds one slice of ``params["layers"]``, cast to `dtype` if there is one, to a layer and returns it."""
    graph, structure = _block_graph(architecture)
    whole = jax.tree.leaves(weights, is_leaf=lambda w: isinstance(w, Adapted))
    leaves = [w if dtype is None else w.astype(dtype) for w in whole]
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
    """Returns the normalised output of the last layer: what the output head reads. See `routed_hidden_states`."""
    inputs = (params, architecture, token_ids, positions, segment_ids)
    return routed_hidden_states(*inputs, dtype=dtype, remat=remat, hardware=hardware)[0]


def routed_hidden_states(
    params: Params,
    architecture: Architecture,
    token_ids: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    segment_ids: Int[Array, "batch time"],
    *,
    dtype: DTypeLike = jnp.float32,
    remat: str = "none",
    hardware: Hardware = CPU,
    shared: Int[Array, "batch time 2"] | None = None,
    routes: Int[Array, "batch time layers picked"] | None = None,
    replay: bool = False,
) -> tuple[Float[Array, "batch time hidden"], RouterSums | None]:
    """Returns the normalised output of the last layer, and what the routers did with the tokens.

    Args:
        params: as `init_params` makes them; cast to `dtype` where they are used. Gradients are summed in their dtype.
        architecture: the model's shape.
        token_ids: packed rows of tokens.
        positions: place of each token within its own trajectory, counted from 0.
        segment_ids: trajectory of each token within its row, 0 for padding. Tokens see their own segment, and `shared`.
        dtype: of the computation; norms and attention scores are float32 always.
        remat: what the backward pass recomputes: ``none`` (no matrix product but attention's own), ``dots`` (all but
            the products with weights) or ``full`` (whole layers).
        hardware: that it is computed on.
        shared: places of a prompt that each token sees besides; see `rljax.learner.packing.Batch`.
        routes: experts that an engine has chosen for each token, of a model with experts; None: nobody knows.
        replay: whether they are used; else they are compared alone.

    Returns:
        Activations of type `dtype`; those of padding mean nothing. Sums over the tokens but padding, by layer; None
        where layers have no experts.
    """
    a, sizes = architecture, tuple(sorted(set(architecture.windows))) or (0,)
    # Layers of several kinds are scanned together: each is told its kind, and only those of one kind compile to less.
    rotations = [rotation(positions, a, local=size > 0) for size in sizes]
    spans = causal_spans(segment_ids, shared)
    of_layers = None if len(sizes) == 1 else jnp.asarray([sizes.index(size) for size in a.windows], jnp.int32)

    by_layer = None if routes is None else jnp.moveaxis(routes, 2, 0)

    stacked, apart = parted(params["layers"])

    def layer(x: jax.Array, scanned: tuple[Params, Any, Any, Any]) -> tuple[jax.Array, RouterSums | None]:
        weights, number, kind, recorded = scanned
        block = bind_block(a, whole_layer(weights, apart, number))
        which = 0 if kind is None else kind
        cos, sin = rotations[0] if kind is None else (jnp.stack(each)[which] for each in zip(*rotations, strict=True))
        query, key, value = block.project(x, cos, sin, hardware)
        attended = attention(query, key, value, spans, hardware, Window(sizes, which))
        x = block.finish(x, attended, hardware, recorded if replay else None)
        return x, router_sums(block.routing, segment_ids > 0, recorded) if isinstance(block, ExpertsBlock) else None

    x = hardware.residual(scaled(embed(params["embedding"], token_ids, hardware).astype(dtype), a))
    scanned = stacked, jnp.arange(a.num_layers) if apart else None, of_layers, by_layer
    x, routed = jax.lax.scan(rematerialised(layer, remat), x, scanned)
    return hardware.gathered(final_norm(params, a, x)), routed


def scaled(embedded: Float[Array, "*places hidden"], architecture: Architecture) -> Float[Array, "*places hidden"]:
    """Returns embeddings as the first layer reads them: in some families they are scaled."""
    if not FAMILIES[architecture.family].scaled_embedding:
        return embedded
    return embedded * jnp.asarray(architecture.hidden_size**0.5, embedded.dtype)


def final_norm(
    params: Params, architecture: Architecture, x: Float[Array, "*places hidden"]
) -> Float[Array, "*places hidden"]:
    """Normalises the last layer's output."""
    a = architecture
    normed: jax.Array = FAMILIES[a.family].block.norm(x, params["final_norm"], a.rms_eps)
    return normed


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
