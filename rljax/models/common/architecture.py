"""Architecture of a model, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rljax.models.common.rope_scaling import LongRope, RopeScaling

DEFAULT_ROPE_THETA = 10_000.0


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
        rope_scaling: how the rotary frequencies are scaled, or None.
        rms_eps: epsilon of every RMS norm.
        tie_embeddings: whether the output head is the embedding.
        attention_bias: whether query, key and value have a bias; the family says whether the output has one too.
        qk_norm: whether queries and keys are RMS-normalised per head. It follows from the family, and is kept in the
            printed form by which runs know their model.
        max_position_embeddings: longest sequence the model was made for.
        windows: of each layer, how many tokens a query sees, itself among them; 0: all before it. Empty: no layer has
            a window.
        local_rope_theta: base of the unscaled rotary frequencies of layers with a window; None: they have the others'.
        partial_rotary_factor: part of a head's width that rotates.
        activation: of the MLP's gate, as `config.json` calls it; see `rljax.models.common.activation`.
        mlp_bias: whether the MLP's matrices have biases.
        query_pre_attn_scalar: what scores are divided by the root of; None: `head_dim`.
        context: longest sequence of the run, in tokens, which a longrope scaling goes by; 0: `max_position_embeddings`.
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
    rope_scaling: RopeScaling | None = None
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int = 2048
    windows: tuple[int, ...] = ()
    local_rope_theta: float | None = None
    partial_rotary_factor: float = 1.0
    activation: str = "silu"
    mlp_bias: bool = False
    query_pre_attn_scalar: int | None = None
    context: int = 0
    experts: Experts | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need pairs")
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} windows for {self.num_layers} layers; give one a layer, or none")
        if self.rotary_dim % 2:
            raise ValueError(f"partial_rotary_factor {self.partial_rotary_factor} of head_dim {self.head_dim} is odd")
        if isinstance(self.rope_scaling, LongRope):
            self.rope_scaling.check(self.rotary_dim // 2)

    def __repr__(self) -> str:
        """Returns the form by which runs know their model: a field that came later is not in it where it says nothing,
        so that a model of before is still the same one.
        """
        every = fields(self)
        first = [field.name for field in every].index("windows")  # of those that came later
        shown = [f for i, f in enumerate(every) if i < first or getattr(self, f.name) != f.default]
        return f"Architecture({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    @property
    def rotary_dim(self) -> int:
        """Width of the part of a head that rotates."""
        return int(self.head_dim * self.partial_rotary_factor)

    def window(self, layer: int) -> int:
        """Returns the window of a layer; 0: it has none."""
        return self.windows[layer] if self.windows else 0

    def keys_seen(self, length: int) -> float:
        """Returns how many keys a token of a sequence of so many sees, on average, summed over the layers."""
        windows = [min(self.window(layer) or length, length) for layer in range(self.num_layers)]
        return sum(window - window**2 / (2 * length) for window in windows)

    def within(self, context: int) -> Architecture:
        """Returns the same model for a run whose sequences have at most so many tokens."""
        return replace(self, context=context)

    @property
    def mlp_width(self) -> int:
        """Width of what a token goes through in the place of an MLP: of its experts together, where there are some."""
        return self.experts.per_token * self.experts.width if self.experts else self.intermediate_size
