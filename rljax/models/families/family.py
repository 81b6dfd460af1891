"""Families of models: layer, names, sharding, and conversion between `config.json` and an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljax.models.common.activation import ACTIVATIONS
from rljax.models.common.architecture import DEFAULT_ROPE_THETA, Architecture
from rljax.models.common.block import LAYER_NAMES, Block
from rljax.models.common.hardware import Rule
from rljax.models.common.rope_scaling import SCALINGS, LongRope, RopeScaling
from rljax.models.families.windows import NO_WINDOWS, Windows


@dataclass(frozen=True)
class Family:
    """A family of decoders.

    Attributes:
        name: the ``model_type`` of its `config.json`.
        hf_class: transformers' class of its causal language models.
        block: its decoder layer: the common one, or one derived from it.
        names: Hugging Face name of each parameter of a layer, within its layer. One with ``{}``, where the number
            stands, is that of each expert's matrix.
        fused: tensors of its files that hold several of ``names``, one below the other.
        sharding: sharding rules of parameters that no other family has, as those of `rljax.learner.sharding`.
        windows: which layers have a sliding window, read and written.
        scaled_embedding: whether embeddings are multiplied by the root of their width.
        fixed: fields of `Architecture` that all of its models share; its `config.json` does not have them.
        defaults: what transformers takes for fields that a `config.json` lacks.
    """

    name: str
    hf_class: str
    block: type[Block] = Block
    names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sharding: Mapping[str, Rule] = field(default_factory=dict)
    windows: Windows = NO_WINDOWS
    scaled_embedding: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def from_config(self, config: Mapping[str, Any]) -> Architecture:
        """Reads the fields of a `config.json`, as transformers 4 or 5 writes them.

        Raises:
            ValueError: for a feature that is not supported, or a missing field.
        """
        config = self.normalised({**self.defaults, **config})
        _refuse_unsupported(config)
        features: dict[str, Any] = {"attention_bias": bool(config.get("attention_bias", False)), **self.fixed}
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            theta, scaling = _rope(config)
            return Architecture(
                family=self.name,
                vocab_size=int(config["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(config["intermediate_size"]),
                num_layers=int(config["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                rope_theta=theta,
                rope_scaling=scaling,
                rms_eps=float(config.get("rms_norm_eps", 1e-6)),
                tie_embeddings=bool(config.get("tie_word_embeddings", False)),
                max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
                windows=self.windows.read(config),
                activation=config.get("hidden_act", "silu"),
                **features,
                **self.features(config),
            )
        except KeyError as missing:
            raise ValueError(f"config.json of a {self.name} model lacks the field {missing}") from None

    def normalised(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of a `config.json` under the names that most families have for them."""
        return config

    def features(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the fields of `Architecture` that the family's models have and most others do not.

        Raises:
            ValueError: for a feature that is not supported.
        """
        for name, usual in (("mlp_bias", False), ("partial_rotary_factor", 1.0)):
            if config.get(name, usual) not in (usual, None):
                raise ValueError(f"{self.name} with {name} is not supported")
        return {}

    def to_config(self, architecture: Architecture) -> dict[str, Any]:
        """Returns the fields of a `config.json` that transformers (4 and 5) and vLLM load."""
        a = architecture
        config: dict[str, Any] = {
            "architectures": [self.hf_class],
            "model_type": self.name,
            "vocab_size": a.vocab_size,
            "hidden_size": a.hidden_size,
            "intermediate_size": a.intermediate_size,
            "num_hidden_layers": a.num_layers,
            "num_attention_heads": a.num_heads,
            "num_key_value_heads": a.num_kv_heads,
            "head_dim": a.head_dim,
            "hidden_act": a.activation,
            "rope_theta": a.rope_theta,
            "rope_scaling": None if a.rope_scaling is None else a.rope_scaling.written(),
            "rms_norm_eps": a.rms_eps,
            "tie_word_embeddings": a.tie_embeddings,
            "max_position_embeddings": a.max_position_embeddings,
            **self.windows.written(a),
            **self.own_fields(a),
        }
        if "attention_bias" not in self.fixed:
            config["attention_bias"] = a.attention_bias
        return config

    def own_fields(self, architecture: Architecture) -> dict[str, Any]:
        """Returns the fields of a `config.json` that `features` reads."""
        return {}


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    name, activation = config["model_type"], config.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{name} with hidden_act {activation!r} is not supported; supported are {known}")
    if config.get("quantization_config"):
        raise ValueError(f"{name} with quantised weights is not supported; give the unquantised model")


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    # transformers 5 keeps theta and scaling together in `rope_parameters`; 4 has `rope_theta` and `rope_scaling`.
    parameters = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or DEFAULT_ROPE_THETA)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind not in SCALINGS:
        raise ValueError(f"rope type {kind!r} is not supported; supported are default, {', '.join(SCALINGS)}")
    positions = int(config.get("max_position_embeddings", 2048))
    # Phi-3 keeps the original length beside the scaling, where transformers looks first.
    length = config.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    parameters["original_max_position_embeddings"] = int(length or positions)
    if kind == LongRope.rope_type and parameters.get("factor") is None:
        parameters["factor"] = positions / parameters["original_max_position_embeddings"]
    return theta, SCALINGS[kind].read(parameters)
