"""Families of models: layer, names, sharding, and conversion between `config.json` and an architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flax import nnx

from rljax.models.common.architecture import DEFAULT_ROPE_THETA, Architecture, Experts, Llama3Rope
from rljax.models.common.block import LAYER_NAMES, Block
from rljax.models.common.hardware import Rule

_DEFAULT_WINDOW = 4096
"""Default of transformers, for a config.json that uses a sliding window without its size; null is none."""


class ExpertFields(NamedTuple):
    """Fields of a `config.json` that say which experts a model has.

    Attributes:
        read: returns them.
        written: returns their fields.
    """

    read: Callable[[Mapping[str, Any]], Experts]
    written: Callable[[Experts], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """A family of decoders.

    Attributes:
        name: the ``model_type`` of its `config.json`.
        hf_class: transformers' class of its causal language models.
        block: makes one decoder layer: the common one, or one derived from it.
        names: Hugging Face name of each parameter of a layer, within its layer. One with ``{}``, where the number
            stands, is that of each expert's matrix.
        sharding: sharding rules of parameters that no other family has, as those of `rljax.learner.sharding`.
        fixed: fields of `Architecture` that all of its models share; its `config.json` does not have them.
        written: further fields that its `config.json` has for every model.
        experts: fields of the experts; None: its models have none.
    """

    name: str
    hf_class: str
    block: Callable[[Architecture, nnx.Rngs], Block] = Block
    names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    sharding: Mapping[str, Rule] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    experts: ExpertFields | None = None

    def from_config(self, config: Mapping[str, Any]) -> Architecture:
        """Reads the fields of a `config.json`, as transformers 4 or 5 writes them.

        Raises:
            ValueError: for a feature that is not supported, or a missing field.
        """
        _refuse_unsupported(config)
        features: dict[str, Any] = {"attention_bias": bool(config.get("attention_bias", False)), **self.fixed}
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            theta, scaling = _rope(config)
            if self.experts is not None:
                features["experts"] = self.experts.read(config)
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
                **features,
            )
        except KeyError as missing:
            raise ValueError(f"config.json of a {self.name} model lacks the field {missing}") from None

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
            "hidden_act": "silu",
            "rope_theta": a.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": a.rms_eps,
            "tie_word_embeddings": a.tie_embeddings,
            "max_position_embeddings": a.max_position_embeddings,
            **self.written,
        }
        if a.rope_scaling is not None:
            config["rope_scaling"] = {"rope_type": "llama3", **vars(a.rope_scaling)}
        if "attention_bias" not in self.fixed:
            config["attention_bias"] = a.attention_bias
        if self.experts is not None and a.experts is not None:
            config |= self.experts.written(a.experts)
        return config


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    name = config["model_type"]
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{name} with hidden_act {config['hidden_act']!r} is not supported; only silu is")
    if config.get("mlp_bias"):
        raise ValueError(f"{name} with mlp_bias is not supported")
    slides = config.get("use_sliding_window") and config.get("sliding_window", _DEFAULT_WINDOW)
    if slides or any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ValueError(f"{name} with a sliding attention window in use is not supported")
    if config.get("quantization_config"):
        raise ValueError(f"{name} with quantised weights is not supported; give the unquantised model")


def _rope(config: Mapping[str, Any]) -> tuple[float, Llama3Rope | None]:
    # transformers 5 keeps theta and scaling together in `rope_parameters`; 4 has `rope_theta` and `rope_scaling`.
    parameters = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or DEFAULT_ROPE_THETA)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"rope type {kind!r} is not supported; supported are default and llama3")
    return theta, Llama3Rope(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
    )
