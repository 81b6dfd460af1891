"""Gemma 3, of text: sliding windows in five of six layers, which have a rotation of their own; a norm on both sides of
attention and MLP, whose weight is what it adds to 1; normalised queries and keys; scaled embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.block import LAYER_NAMES, Block, constant
from rljax.models.common.hardware import Hardware
from rljax.models.common.norm import spread
from rljax.models.families.family import Family
from rljax.models.families.windows import ByLayer

_LOCAL_THETA = 10_000.0


def _norm(x: Float[Array, "... width"], scale: Float[Array, " width"], eps: float) -> Float[Array, "... width"]:
    """Applies Gemma's RMS norm, in float32 to its end: its weight is what the scale has above 1."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (normed * (1 + spread(scale, wide))).astype(x.dtype)


class Gemma3Block(Block):
    """Layer with a norm on both sides of attention and MLP, and one of each head's query and key."""

    norm = staticmethod(_norm)
    norm_start = 0.0

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        super().__init__(architecture, rngs)
        self.query_norm = constant(0.0, architecture.head_dim)
        self.key_norm = constant(0.0, architecture.head_dim)
        self.attention_end_norm = constant(0.0, architecture.hidden_size)
        self.mlp_end_norm = constant(0.0, architecture.hidden_size)

    def before_rotation(
        self,
        query: Float[Array, "batch time heads head_dim"],
        key: Float[Array, "batch time kv_heads head_dim"],
    ) -> tuple[Float[Array, "batch time heads head_dim"], Float[Array, "batch time kv_heads head_dim"]]:
        """Returns the normalised queries and keys, the former scaled to what scores are divided by."""
        a = self.architecture
        query, key = _norm(query, self.query_norm[...], a.rms_eps), _norm(key, self.key_norm[...], a.rms_eps)
        if a.query_pre_attn_scalar is not None:
            query = query * jnp.asarray((a.head_dim / a.query_pre_attn_scalar) ** 0.5, query.dtype)
        return query, key

    def mix(
        self, attended: Float[Array, "batch time heads head_dim"], hardware: Hardware
    ) -> Float[Array, "batch time hidden"]:
        """Returns what attention adds to the residual stream, normalised."""
        mixed = hardware.residual(super().mix(attended, hardware))
        return _norm(mixed, self.attention_end_norm[...], self.architecture.rms_eps)

    def mlp(
        self,
        normed: Float[Array, "batch time hidden"],
        hardware: Hardware,
        routes: Int[Array, "batch time picked"] | None = None,
    ) -> Float[Array, "batch time hidden"]:
        """Returns what the MLP adds to the residual stream, normalised."""
        added = hardware.residual(super().mlp(normed, hardware, routes))
        return _norm(added, self.mlp_end_norm[...], self.architecture.rms_eps)


class _Gemma3(Family):
    def normalised(self, config: dict[str, Any]) -> dict[str, Any]:
        ropes = config.get("rope_parameters") or {}
        local, whole = ropes.get("sliding_attention") or {}, ropes.get("full_attention") or {}
        if (local.get("rope_type") or "default") != "default":
            raise ValueError(f"{self.name} with scaled rotary embeddings in its sliding layers is not supported")
        return config | {
            "hidden_act": config["hidden_activation"],
            "rope_parameters": whole,
            "rope_local_base_freq": local.get("rope_theta") or config.get("rope_local_base_freq") or _LOCAL_THETA,
        }

    def features(self, config: Mapping[str, Any]) -> dict[str, Any]:
        for name in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
            if config.get(name):
                raise ValueError(f"{self.name} with {name} is not supported")
        scalar = int(config["query_pre_attn_scalar"])
        return super().features(config) | {
            "local_rope_theta": float(config["rope_local_base_freq"]),
            "query_pre_attn_scalar": None if scalar == config["head_dim"] else scalar,
        }

    def own_fields(self, architecture: Architecture) -> dict[str, Any]:
        a = architecture
        return {
            "hidden_activation": a.activation,
            "rope_local_base_freq": a.local_rope_theta or _LOCAL_THETA,
            "query_pre_attn_scalar": a.query_pre_attn_scalar or a.head_dim,
        }


def _slides(config: Mapping[str, Any], layer: int) -> bool:
    return (layer + 1) % int(config["sliding_window_pattern"]) > 0


GEMMA3 = _Gemma3(
    "gemma3_text",
    "Gemma3ForCausalLM",
    block=Gemma3Block,
    names={
        **LAYER_NAMES,
        "query_norm": "self_attn.q_norm.weight",
        "key_norm": "self_attn.k_norm.weight",
        "attention_end_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_end_norm": "post_feedforward_layernorm.weight",
    },
    sharding={
        "query_norm": (None, None),
        "key_norm": (None, None),
        "attention_end_norm": (None, None),
        "mlp_end_norm": (None, None),
    },
    windows=ByLayer(_slides, always=True),
    scaled_embedding=True,
    fixed={"qk_norm": True},
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
)
