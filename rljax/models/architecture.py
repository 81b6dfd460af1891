"""What a model is: the numbers that a Hugging Face `config.json` carries, and which of its features are supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DEFAULT_ROPE_THETA = 10_000.0
_DEFAULT_WINDOW = 4096
"""Of transformers, for a config.json that uses a sliding window and does not say which; null is none."""


@dataclass(frozen=True)
class Llama3Rope:
    """Llama-3 rope scaling: low frequencies are divided by `factor`, high ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Architecture:
    """The shape of a dense decoder of the Llama, Qwen2 or Qwen3 family. Hashable, so it can be a static argument.

    Attributes:
        family: ``llama``, ``qwen2`` or ``qwen3``.
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
        attention_bias: whether query, key and value have a bias (and the output too, except in Qwen2).
        qk_norm: whether queries and keys are RMS-normalised per head, as in Qwen3.
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
    rope_theta: float = _DEFAULT_ROPE_THETA
    rope_scaling: Llama3Rope | None = None
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"model family {self.family!r} is not supported; supported are {', '.join(FAMILIES)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need pairs")

    @property
    def output_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self.attention_bias and self.family != "qwen2"

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Architecture:
        """Reads the fields of a `config.json`, as transformers 4 or 5 writes them.

        Raises:
            ValueError: for a model type or a feature that is not supported, or a missing field.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ValueError(f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}")
        _refuse_unsupported(config)
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            theta, scaling = _rope(config)
            return cls(
                family=family,
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
                attention_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
                qk_norm=family == "qwen3",
                max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
            )
        except KeyError as missing:
            raise ValueError(f"config.json of a {family} model lacks the field {missing}") from None

    def to_hf(self) -> dict[str, Any]:
        """The fields of a `config.json` that transformers (4 and 5) and vLLM load."""
        config: dict[str, Any] = {
            "architectures": [_CLASSES[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": self.rms_eps,
            "tie_word_embeddings": self.tie_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
        }
        if self.rope_scaling is not None:
            config["rope_scaling"] = {"rope_type": "llama3", **vars(self.rope_scaling)}
        if self.family == "llama":
            config["mlp_bias"] = False
        else:
            config["use_sliding_window"] = False
        if self.family != "qwen2":
            config["attention_bias"] = self.attention_bias
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
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or _DEFAULT_ROPE_THETA)
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
