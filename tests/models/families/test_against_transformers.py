"""Every family and oddity against transformers in float32: logits at 2k and 32k positions, greedy tokens, and what is
written read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from rljax.models.common.architecture import Architecture
from rljax.models.common.rope import inverse_frequencies
from rljax.models.files import load_directory, save_directory
from rljax.models.hf_names import to_hf
from rljax.models.transformer import hidden_states, output_head
from rljax.sampler.engine import EmbeddedEngine
from sidecar.protocol import GenerateRequest, SamplingParams
from tests.models.hf_models import (
    assert_same_logits,
    load_with_transformers,
    randomised,
    reference_logits,
    save,
    tokens,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
}
pytestmark = pytest.mark.optimised

WINDOW = 300
ROPES: Mapping[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn, all its keys": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 2048,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.0 + 1.5 * i for i in range(8)],
        "original_max_position_embeddings": 4096,
    },
}
PHI3: dict[str, Any] = {**SHAPE, "pad_token_id": 0, "original_max_position_embeddings": 4096}
HALF_LONG = {key: value[:4] if isinstance(value, list) else value for key, value in ROPES["longrope"].items()}
SCALED: dict[str, PreTrainedConfig] = {
    f"llama {name}": LlamaConfig(**SHAPE, rope_scaling=dict(rope)) for name, rope in ROPES.items()
}
ODDITIES: dict[str, PreTrainedConfig] = SCALED | {
    "llama": LlamaConfig(**SHAPE),
    "llama, all biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama gelu": LlamaConfig(**SHAPE, hidden_act="gelu"),
    "llama gelu_pytorch_tanh": LlamaConfig(**SHAPE, hidden_act="gelu_pytorch_tanh"),
    "qwen2 yarn": Qwen2Config(**SHAPE, rope_scaling=dict(ROPES["yarn"])),
    "qwen2 sliding from a layer on": Qwen2Config(
        **(SHAPE | {"num_hidden_layers": 3}), use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3 sliding in one layer": Qwen3Config(
        **SHAPE,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "mistral without windows": MistralConfig(**SHAPE, sliding_window=None),
    "phi3": Phi3Config(**PHI3, sliding_window=WINDOW),
    "phi3 longrope of a part": Phi3Config(**PHI3, partial_rotary_factor=0.5, rope_scaling=dict(HALF_LONG)),
    "mixtral gelu, with windows": MixtralConfig(**SHAPE, num_local_experts=4, hidden_act="gelu", sliding_window=WINDOW),
    "qwen3_moe with windows": Qwen3MoeConfig(  # in every layer, whatever max_window_layers says
        **SHAPE,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=28,
    ),
    "gemma3": Gemma3TextConfig(
        **(SHAPE | {"num_hidden_layers": 5}),
        head_dim=16,
        query_pre_attn_scalar=20,
        sliding_window=WINDOW,
        sliding_window_pattern=3,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
}


def _load(name: str, directory: Path, context: int) -> tuple[torch.nn.Module, Architecture, Any]:
    model = randomised(ODDITIES[name], seed=1)
    architecture, params = load_directory(save(model, directory))
    return model, architecture.within(context), params


def _logits(architecture: Architecture, params: Any, token_ids: np.ndarray, last: int) -> np.ndarray:
    """Those of the last places: at 32k those of all take a second GiB."""

    @jax.jit
    def logits(params: Any) -> jax.Array:
        steps = np.arange(token_ids.shape[1], dtype=np.int32)[None]
        hidden = hidden_states(params, architecture, token_ids, steps, np.ones_like(token_ids))
        return hidden[:, -last:] @ output_head(params, architecture)

    return np.asarray(logits(params))


@pytest.mark.slow
@pytest.mark.parametrize("name", ODDITIES)
def test_logits_at_2k_positions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, architecture, params = _load(name, tmp_path / "model", 2048)
    token_ids = tokens(1, 2048, seed=3)
    found, expected = _logits(architecture, params, token_ids, 2048), reference_logits(model, token_ids)
    assert_same_logits(found, expected, 2e-4)


# Scalings differ in frequencies and a factor alone, which are compared bit for bit as far below.
FAR_SCALED = [f"llama {name}" for name in ("yarn, all its keys", "longrope")]
FAR = [*FAR_SCALED, "llama", "qwen3 sliding in one layer", "mistral", "phi3 longrope of a part", "gemma3"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAR)
def test_the_likeliest_tokens_at_32k_positions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, architecture, params = _load(name, tmp_path / "model", 32768)
    token_ids, last = tokens(1, 32768, seed=4), 64
    found = _logits(architecture, params, token_ids, last)
    ids: Any = torch.from_numpy(token_ids.astype(np.int64))
    cache = DynamicCache(config=ODDITIES[name])
    # With a window transformers makes a mask of 32k by 32k, unless it reads the tokens in parts.
    with torch.no_grad():
        for part in ids.split(2048 if any(architecture.windows) else ids.shape[1], dim=1):
            expected = model(part, logits_to_keep=last, past_key_values=cache).logits.numpy()
    assert_same_logits(found, expected, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ODDITIES)
def test_what_is_written_is_what_transformers_reads(name: str, tmp_path: Path) -> None:
    model, architecture, params = _load(name, tmp_path / "model", 0)
    tensors = {key: np.asarray(array) for key, array in to_hf(params, architecture).items()}
    save_directory(tmp_path / "export", architecture, tensors, tmp_path / "model", "fp32")
    again, kept = load_directory(tmp_path / "export")
    assert again == architecture
    jax.tree.map(np.testing.assert_array_equal, kept, params)
    loaded, token_ids = load_with_transformers(tmp_path / "export"), tokens(1, 2 * WINDOW, seed=5)
    np.testing.assert_array_equal(reference_logits(loaded, token_ids), reference_logits(model, token_ids))


GENERATED = [name for name in ODDITIES if not name.startswith("llama ") or "longrope" in name]


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
def test_greedy_tokens_of_the_embedded_engine_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    prompt, new = tokens(1, WINDOW - 20, seed=6)[0], 64  # the window is full before the end
    model, architecture, params = _load(name, tmp_path / "model", len(prompt) + new)
    tensors = {key: np.asarray(array) for key, array in to_hf(params, architecture).items()}
    published: Any = SimpleNamespace(tensors=tensors, manifest=SimpleNamespace(version=0, adapter=None))

    async def generate() -> np.ndarray:
        engine = EmbeddedEngine(architecture, slots=2, max_length=512, decode_steps=8, dtype=np.float32)
        try:
            engine._batch.load(engine._place(published), 0, 0)
            request = GenerateRequest("one", prompt, SamplingParams(temperature=0.0, max_new_tokens=new))
            return (await engine.generate(request)).token_ids
        finally:
            await engine.close()

    found = asyncio.run(generate())
    ids: Any = torch.from_numpy(prompt[None].astype(np.int64))
    options = {"do_sample": False, "max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].numpy()  # type: ignore[operator]
    np.testing.assert_array_equal(found, expected)


def _ulps(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    assert found.dtype == expected.dtype == np.float32
    return np.abs(found.view(np.int32) - expected.view(np.int32))


@pytest.mark.parametrize("context", [2048, 32768])
@pytest.mark.parametrize("name", SCALED)
def test_frequencies_are_bit_for_bit_those_of_transformers(name: str, context: int) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from rljax.models.families.registry import from_config

    rotary = LlamaRotaryEmbedding(ODDITIES[name])
    cos, sin = rotary(torch.zeros(1), torch.arange(context)[None])
    frequencies, factor = inverse_frequencies(from_config(ODDITIES[name].to_dict()).within(context))
    np.testing.assert_array_equal(_ulps(frequencies, rotary.inv_freq.numpy()), 0)
    assert factor == rotary.attention_scaling
    assert cos.shape == sin.shape


PUBLISHED = [  # heads' widths and bases of SmolLM2, Llama 2 and 3, Qwen2.5 and Qwen3, Mistral, Phi-3, Gemma 3
    *[(64, theta) for theta in (1e4, 1e5, 5e5, 1e6)],
    *[(128, theta) for theta in (1e4, 5e5, 1e6, 1e8)],
    (96, 1e4),
    (256, 1e4),
    (256, 1e6),
]


@pytest.mark.parametrize(("width", "theta"), PUBLISHED)
def test_frequencies_of_published_models_are_those_that_pytorch_computes(width: int, theta: float) -> None:
    """Of PyTorch's powers one in a hundred is a last bit off, another one on every kind of CPU; ours are rounded."""
    architecture = Architecture("llama", 8, width, 8, 1, 1, 1, width, rope_theta=theta)
    exponents = torch.arange(0, width, 2, dtype=torch.float) / width
    apart = _ulps(inverse_frequencies(architecture)[0], (1.0 / theta**exponents).numpy())
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.05


def test_a_model_with_several_contexts_is_one_model() -> None:
    """What a run knows its model by says nothing of how far the run goes."""
    architecture = Architecture("llama", 8, 8, 8, 1, 1, 1, 8)
    assert repr(replace(architecture.within(64), context=0)) == repr(architecture)
