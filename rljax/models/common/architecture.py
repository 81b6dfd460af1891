"""Architecture of a model, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class Llama3Rope:
    """Llama-3 rope scaling: low frequencies are divided by `factor`, high ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Architecture:
    """Architecture of a dense decoder. Hashable, so it can be a static argument.

    Attributes:
        family: a name of `rljax.models.families.registry.FAMILIES`.
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated MLP.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads`.
        head_dim: width of one head, even.
        rope_theta: base of the rotary frequencies.
        rope_scaling: Llama-3 scaling of the rotary frequencies, or None.
        rms_eps: epsilon of every RMS norm.
        tie_embeddings: whether the output head is the embedding.
        attention_bias: whether query, key and value have a bias; the family says whether the output has one too.
        qk_norm: whether queries and keys are RMS-normalised per head. It follows from the family, and is kept in the
            printed form by which runs know their model.
        max_position_embeddings: longest sequence the model was made for.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = DEFAULT_ROPE_THETA
    rope_scaling: Llama3Rope | None = None
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need pairs")
