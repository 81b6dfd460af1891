"""Architecture of a model, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass, fields

DEFAULT_ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class Llama3Rope:
    """Llama-3 rope scaling: low frequencies are divided by `factor`, high ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Experts:
    """Experts that every layer has in the place of one MLP.

    Attributes:
        count: of a layer.
        per_token: those that a token goes through.
        width: of each expert's gated MLP.
        normalised: whether the gates of a token's experts are made to sum to 1.
    """

    count: int
    per_token: int
    width: int
    normalised: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError(f"a token cannot go through {self.per_token} of {self.count} experts")


@dataclass(frozen=True, repr=False)
class Architecture:
    """Architecture of a decoder. Hashable, so it can be a static argument.

    Attributes:
        family: a name of `rljax.models.families.registry.FAMILIES`.
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated MLP; with experts nothing has it but `config.json`.
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
        experts: of every layer; None: it has one MLP.
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
    experts: Experts | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need pairs")

    def __repr__(self) -> str:
        """Returns the form by which runs know their model: a field that came later is not in it where it says nothing,
        so that a model of before is still the same one.
        """
        every = fields(self)
        first = [field.name for field in every].index("experts")  # of those that came later
        shown = [f for i, f in enumerate(every) if i < first or getattr(self, f.name) != f.default]
        return f"Architecture({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    @property
    def mlp_width(self) -> int:
        """Width of what a token goes through in the place of an MLP: of its experts together, where there are some."""
        return self.experts.per_token * self.experts.width if self.experts else self.intermediate_size
