"""Random small models of transformers, saved as directories: the independent implementation that ours is held to."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    AutoModelForCausalLM,
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

from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.transformer import hidden_states, output_head

VOCABULARY = 61
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
# In heads of width 24 its wavelengths are 6, 14, 29, 63 ... tokens: some kept, some stretched, some between.
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_HALF_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_PHI3 = _SHAPE | {"pad_token_id": 0}
_EXPERTS: dict[str, Any] = {"num_experts": 6, "moe_intermediate_size": 16}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SHAPE, head_dim=24, rope_parameters=_LLAMA3_ROPE, tie_word_embeddings=True),
    "llama-untied": LlamaConfig(**_SHAPE, head_dim=24, rope_parameters=_LLAMA3_ROPE, attention_bias=True),
    "qwen2": Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen2-untied": Qwen2Config(**_SHAPE, rms_norm_eps=1e-5),
    "qwen3": Qwen3Config(**_SHAPE, head_dim=24, tie_word_embeddings=True),
    "qwen3-untied": Qwen3Config(**_SHAPE, head_dim=24, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "mistral": MistralConfig(**_SHAPE, head_dim=24, sliding_window=9, tie_word_embeddings=True),
    "phi3": Phi3Config(**_PHI3, rope_parameters=_HALF_ROPE, sliding_window=11, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(
        **(_SHAPE | {"num_hidden_layers": 5}),  # a period, sliding twice before it sees all, and a part of one
        head_dim=24,
        query_pre_attn_scalar=40,
        sliding_window=9,
        sliding_window_pattern=3,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "qwen3_moe": Qwen3MoeConfig(
        **_SHAPE, **_EXPERTS, head_dim=24, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=True
    ),
    "qwen3_moe-untied": Qwen3MoeConfig(**_SHAPE, **_EXPERTS, head_dim=24, num_experts_per_tok=3),
    "mixtral-untied": MixtralConfig(**_SHAPE, num_local_experts=4),
}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3", "qwen3_moe", "mixtral-untied")


def random_model(name: str, seed: int = 0) -> PreTrainedModel:
    """The float32 model of ``CONFIGS[name]``."""
    return randomised(CONFIGS[name], seed)


def randomised(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A float32 model that has opinions: no bias is 0 and no norm is 1, as they are at initialisation, and
    log-probabilities of two seeds differ by nats."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    return model


@functools.cache
def shared_model(name: str) -> PreTrainedModel:
    """`random_model`, the same object for all tests: not to be changed."""
    return random_model(name)


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """Writes the model as transformers does."""
    model.save_pretrained(str(directory), **options)
    return directory


def file_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Tensors by the names under which transformers writes them, one an expert; in memory it joins experts."""
    with tempfile.TemporaryDirectory() as directory:
        return load_file(save(model, Path(directory) / "model") / "model.safetensors")


def load_with_transformers(directory: Path) -> PreTrainedModel:
    """The directory's model; every tensor of it was there, and none was left over."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(str(directory), output_loading_info=True)
    model, report = loaded
    assert not any(report.values()), report
    return model.eval()


def tokens(rows: int, time: int, seed: int = 0) -> np.ndarray:
    """Random token ids int32 ``[rows, time]``."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (rows, time)).astype(np.int32)


def reference_logits(model: torch.nn.Module, token_ids: np.ndarray) -> np.ndarray:
    """Logits ``[rows, time, vocabulary]`` of rows without padding, by transformers."""
    with torch.no_grad():
        return model(torch.from_numpy(token_ids.astype(np.int64))).logits.numpy()


def routes_of(model: PreTrainedModel, token_ids: np.ndarray) -> np.ndarray:
    """[time, layers, picked], sorted: what the model's routers choose for ``[time]`` tokens."""
    with torch.no_grad():
        logits = model(torch.as_tensor(token_ids)[None], output_router_logits=True).router_logits
    picked = model.config.num_experts_per_tok
    return np.stack([np.sort(np.argsort(-layer.numpy(), axis=-1)[:, :picked]) for layer in logits], axis=1)


@functools.partial(jax.jit, static_argnames="architecture")
def _logits(
    params: Params, architecture: Architecture, token_ids: jax.Array, positions: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    return hidden_states(params, architecture, token_ids, positions, segment_ids) @ output_head(params, architecture)


def our_logits(
    params: Params,
    architecture: Architecture,
    token_ids: np.ndarray,
    positions: np.ndarray | None = None,
    segment_ids: np.ndarray | None = None,
) -> np.ndarray:
    """Logits ``[rows, time, vocabulary]``, by rljax; of rows without padding where nothing else is said."""
    steps = np.broadcast_to(np.arange(token_ids.shape[1], dtype=np.int32), token_ids.shape)
    positions = steps if positions is None else positions
    segment_ids = np.ones_like(token_ids) if segment_ids is None else segment_ids
    return np.asarray(_logits(params, architecture, token_ids, positions, segment_ids))


def assert_same_logits(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """The largest difference is below `tolerance`, and every row's favourite is the same, unless it leads by less than
    a fifth of that: which of two such is first depends on the order in which a processor sums.
    """
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance
    second, first = np.moveaxis(np.partition(expected, -2, -1)[..., -2:], -1, 0)
    leads = first - second > 0.2 * tolerance
    assert leads.mean() > 0.9
    np.testing.assert_array_equal(found.argmax(-1)[leads], expected.argmax(-1)[leads])


def logprobs_over_kept_kv(old: PreTrainedModel, new: PreTrainedModel, tokens: np.ndarray, read: int) -> np.ndarray:
    """float64 ``[n - read - 1]`` of the tokens behind ``tokens[read]``: ``new`` reads on after what ``old`` has read,
    ``tokens[:read]``.
    """
    ids = torch.as_tensor(np.asarray(tokens, np.int64))[None]
    with torch.no_grad():
        kept = old(ids[:, :read], use_cache=True).past_key_values
        logits = new(ids[:, read:], past_key_values=kept, use_cache=True).logits[0, :-1].double()
    return torch.log_softmax(logits, -1).gather(1, ids[0, read + 1 :, None])[:, 0].numpy()
