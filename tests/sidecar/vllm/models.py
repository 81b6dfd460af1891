"""Random models of transformers whose shapes vLLM computes on a CPU, and their published versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.core_model_loading import revert_weight_conversion

from rljax.weights.publisher import OrbaxPublisher
from sidecar.channels.versions import AdapterInfo
from sidecar.fingerprint import fingerprint
from sidecar.protocol import WeightUpdate
from sidecar.stored import every_tensor
from sidecar.vllm.weights import expected_shapes
from tests.models.hf_models import randomised

VOCABULARY = 97
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
}
_FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
CONFIGS: dict[str, PreTrainedConfig] = {
    f"{family}-{'tied' if tied else 'untied'}": make(
        **_SHAPE, tie_word_embeddings=tied, **({"head_dim": 32} if family == "qwen3" else {})
    )
    for family, make in _FAMILIES.items()
    for tied in (True, False)
}
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + i for i in range(8)],
    "original_max_position_embeddings": 32,
}
WINDOWED: dict[str, PreTrainedConfig] = {
    "mistral": MistralConfig(**_SHAPE, sliding_window=9),
    "phi3": Phi3Config(
        **_SHAPE,
        pad_token_id=0,
        partial_rotary_factor=0.5,
        rope_scaling=_LONGROPE,
        original_max_position_embeddings=32,
        sliding_window=11,
    ),
    "gemma3": Gemma3TextConfig(
        **(_SHAPE | {"num_hidden_layers": 5}),
        head_dim=32,
        query_pre_attn_scalar=40,
        sliding_window=9,
        sliding_window_pattern=3,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
}
"""Of layers with a window that what they are asked is longer than."""
EXPERTS: dict[str, PreTrainedConfig] = {
    "qwen3_moe": Qwen3MoeConfig(
        **_SHAPE, head_dim=32, moe_intermediate_size=80, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True
    ),
    "mixtral": MixtralConfig(**_SHAPE, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True),
}
"""Of layers with experts."""


def random_model(name: str, seed: int) -> PreTrainedModel:
    """The float32 model of that name in `CONFIGS`, `WINDOWED` or `EXPERTS`."""
    return randomised((CONFIGS | WINDOWED | EXPERTS)[name], seed)


def tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Its parameters by name, as a version and transformers' own files hold them."""
    stored = revert_weight_conversion(model, {name: p.detach() for name, p in model.named_parameters()})
    return {name: tensor.contiguous().numpy() for name, tensor in stored.items()}


def publish(directory: Path, version: int, arrays: dict[str, np.ndarray], lineage: int = 1) -> WeightUpdate:
    """Publishes them as this version, in float32."""
    path = OrbaxPublisher(directory).publish(version, lineage, arrays, model="test", dtype="fp32")
    return WeightUpdate(version, lineage, str(path))


def adapted_model(name: str, seed: int, rank: int = 4) -> tuple[Any, dict[str, np.ndarray]]:
    """The model of that name and seed 0 with an adapter of PEFT's that counts twice, random by the seed; and the
    adapter's factors as a version holds them.
    """
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(random_model(name, 0), config)
    generator, layers = torch.Generator().manual_seed(seed), dict[str, dict[int, np.ndarray]]()
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
            found = re.fullmatch(r"base_model\.model\.(.*layers\.)(\d+)(\..*)", key)
            assert found is not None
            before, number, after = found.groups()
            layers.setdefault(f"{before}*{after}".replace(".default", ""), {})[int(number)] = parameter.data.numpy()
    return model, {key: np.stack([of[i] for i in sorted(of)]) for key, of in layers.items()}


def publish_adapters(directory: Path, base: Path, versions: list[dict[str, np.ndarray]]) -> list[WeightUpdate]:
    """Publishes factors of `adapted_model` as versions from 0 on, in float32; its base lies in ``base``."""
    stored, publisher = every_tensor(base), OrbaxPublisher(directory)
    info = AdapterInfo(fingerprint({name: stored[name] for name in expected_shapes(str(base))}), "fp32", 2.0)
    paths = [publisher.publish(i, 1, arrays, model="", dtype="fp32", adapter=info) for i, arrays in enumerate(versions)]
    return [WeightUpdate(version, 1, str(path)) for version, path in enumerate(paths)]


def logprobs(model: PreTrainedModel, tokens: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Float32 ``[n - 1, vocabulary]``: distribution after each token but the last, by transformers."""
    with torch.no_grad():
        logits = model(torch.as_tensor(np.asarray(tokens, np.int64))[None]).logits[0, :-1]
        return torch.log_softmax(logits.double() / temperature, -1).float().numpy()


def token_logprobs(model: PreTrainedModel, tokens: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Float32 ``[n - 1]`` of tokens[1:]."""
    return logprobs(model, tokens, temperature)[np.arange(len(tokens) - 1), tokens[1:]]
