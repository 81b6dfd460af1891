"""Reading and writing `config.json`."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from rljax.models.common.architecture import Experts, Llama3Rope
from rljax.models.families.registry import from_config, to_config
from tests.models.hf_models import CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_what_a_config_leaves_out_follows_from_the_rest() -> None:
    found = from_config(LLAMA)
    assert found.head_dim == 8
    assert found.num_kv_heads == 4
    assert found.rope_theta == 10_000.0
    assert found.rope_scaling is None
    assert (found.tie_embeddings, found.attention_bias, found.qk_norm) == (False, False, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", **ROPE}},  # transformers 4
        {"rope_theta": 500_000.0, "rope_scaling": {"type": "llama3", **ROPE}},  # earlier ones
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0, **ROPE}},  # transformers 5
    ],
)
def test_rope_scaling_is_read_as_every_transformers_writes_it(fields: dict[str, Any]) -> None:
    found = from_config(LLAMA | fields)
    assert found.rope_theta == 500_000.0
    assert found.rope_scaling == Llama3Rope(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_survives_the_round_trip(name: str) -> None:
    found = from_config(CONFIGS[name].to_dict())
    assert from_config(to_config(found)) == found
    assert found.attention_bias == (name.startswith("qwen2") or name == "llama-untied")
    assert found.qk_norm == name.startswith("qwen3")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "mistral"},
            r"^model_type 'mistral' is not supported; supported are llama, qwen2, qwen3, qwen3_moe, mixtral$",
        ),
        ({"model_type": None}, r"^model_type None is not supported"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, r"^qwen3_moe with experts in some layers only \(deco"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, r"^qwen3_moe with experts in some layers only \(deco"),
        ({"model_type": "qwen3_moe", "num_experts": 4}, r"^config.json of a qwen3_moe model lacks the field 'num_expe"),
        ({"model_type": "mixtral", "sliding_window": 4096}, r"^mixtral with a sliding attention window in use is not"),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            r"^a token cannot go through 5 of 4 experts$",
        ),
        ({"hidden_act": "gelu"}, r"^llama with hidden_act 'gelu' is not supported; only silu is$"),
        ({"mlp_bias": True}, r"^llama with mlp_bias is not supported$"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"^rope type 'yarn' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"^rope type 'dynamic' is not supported"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096}, r"sliding attention window"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, r"sliding attention window"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised weights is not supported; give the unquant"),
        ({"num_key_value_heads": 3}, r"^4 query heads cannot share 3 key-value heads evenly$"),
        ({"head_dim": 7}, r"^head_dim 7 is odd"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"lacks the field 'low_freq_factor'$"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        from_config(LLAMA | fields)
    assert "\n" not in str(caught.value)


def test_experts_are_read_as_every_transformers_writes_them() -> None:
    published = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}
    qwen = from_config({**LLAMA, "model_type": "qwen3_moe", **published})
    assert qwen.experts == Experts(count=128, per_token=8, width=768, normalised=True)
    five = {"num_local_experts" if name == "num_experts" else name: value for name, value in published.items()}
    assert from_config({**LLAMA, "model_type": "qwen3_moe", **five}) == qwen
    written = to_config(qwen)
    assert published.items() <= written.items()
    mixtral = from_config({**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert mixtral.experts == Experts(count=8, per_token=2, width=64)
    assert mixtral.mlp_width == 128


@pytest.mark.parametrize("field", sorted(set(LLAMA) - {"model_type"}))
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=f"^config.json of a llama model lacks the field '{field}'$"):
        from_config({name: value for name, value in LLAMA.items() if name != field})


def test_a_sliding_window_that_is_not_in_use_does_not_matter() -> None:
    fields = {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}
    assert from_config(LLAMA | fields).family == "qwen2"


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_sliding_window_that_transformers_would_add_is_refused(family: str) -> None:
    """Which one it is that a config.json without a number means, transformers says: 4096, and none where it is null."""
    fields = LLAMA | {"model_type": family, "use_sliding_window": True, "max_window_layers": 0}
    slides = AutoConfig.for_model(**fields)
    assert (slides.sliding_window, set(slides.layer_types)) == (4096, {"sliding_attention"})
    with pytest.raises(ValueError, match=f"^{family} with a sliding attention window in use is not supported$"):
        from_config(fields)
    whole = AutoConfig.for_model(**fields, sliding_window=None)
    assert set(whole.layer_types) == {"full_attention"}
    assert from_config(fields | {"sliding_window": None}).family == family
