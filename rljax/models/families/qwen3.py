"""Qwen3, dense: queries and keys are normalised per head."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from rljax.models.common.architecture import Architecture
from rljax.models.common.block import LAYER_NAMES, Block, constant
from rljax.models.common.norm import rms_norm
from rljax.models.families.family import Family
from rljax.models.families.windows import FROM_A_LAYER_ON, QWEN_WINDOWS


class Qwen3Block(Block):
    """Layer that RMS-normalises each head's query and key before they are rotated."""

    def __init__(self, architecture: Architecture, rngs: nnx.Rngs) -> None:
        super().__init__(architecture, rngs)
        self.query_norm = constant(1.0, architecture.head_dim)
        self.key_norm = constant(1.0, architecture.head_dim)

    def before_rotation(
        self,
        query: Float[Array, "batch time heads head_dim"],
        key: Float[Array, "batch time kv_heads head_dim"],
    ) -> tuple[Float[Array, "batch time heads head_dim"], Float[Array, "batch time kv_heads head_dim"]]:
        """Returns the normalised queries and keys."""
        eps = self.architecture.rms_eps
        return rms_norm(query, self.query_norm[...], eps), rms_norm(key, self.key_norm[...], eps)


QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    block=Qwen3Block,
    names={**LAYER_NAMES, "query_norm": "self_attn.q_norm.weight", "key_norm": "self_attn.k_norm.weight"},
    sharding={"query_norm": (None, None), "key_norm": (None, None)},
    fixed={"qk_norm": True},
    windows=FROM_A_LAYER_ON,
    defaults=QWEN_WINDOWS,
)
