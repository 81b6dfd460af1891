"""Reading and writing `config.json`."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, Gemma3TextConfig, MixtralConfig

from rljax.models.common.architecture import Experts
from rljax.models.common.rope_scaling import Llama3Rope
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


MISTRAL = {"model_type": "mistral", "num_key_value_heads": 2}
GEMMA3 = {"model_type": "gemma3_text"}
LOCALLY_SCALED = {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}


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
    assert found.qk_norm == name.startswith(("qwen3", "gemma3"))
    assert len(set(found.windows)) == {"mistral": 1, "phi3": 1, "gemma3": 2}.get(name, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt2"}, r"^model_type 'gpt2' is not supported; supported are llama, qwen2, qwen3, mistral, "),
        ({"model_type": "gemma3"}, r"^model_type 'gemma3' is not supported; supported are .*gemma3_text"),
        ({"model_type": None}, r"^model_type None is not supported"),
        (
            {"hidden_act": "relu2"},
            r"^llama with hidden_act 'relu2' is not supported; supported are silu, gelu, gelu_py",
        ),
        ({"model_type": "qwen2", "mlp_bias": True}, r"^qwen2 with mlp_bias is not supported$"),
        ({"partial_rotary_factor": 0.5}, r"^llama with partial_rotary_factor is not supported$"),
        (
            {"rope_scaling": {"rope_type": "mrope", "factor": 4.0}},
            r"^rope type 'mrope' is not supported; supported are ",
        ),
        ({"rope_scaling": {"rope_type": "yarn"}}, r"lacks the field 'factor'$"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "x"}}, r"yarn: factor='x' is no float$"),
        ({"use_sliding_window": True}, r"^llama with a sliding attention window in use is not supported$"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, r"^qwen3_moe with experts in some layers only \(deco"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, r"^qwen3_moe with experts in some layers only \(deco"),
        ({"model_type": "qwen3_moe", "num_experts": 4}, r"^config.json of a qwen3_moe model lacks the field 'num_expe"),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            r"^a token cannot go through 5 of 4 experts$",
        ),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, r"sliding attention window"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "linear_attention"]}, r"type 'linear_attention' is"),
        (
            MISTRAL | {"layer_types": ["full_attention", "sliding_attention"]},
            r"^mistral with a window in some layers al",
        ),
        (GEMMA3 | {"final_logit_softcapping": 30.0}, r"^gemma3_text with final_logit_softcapping is not supported$"),
        (GEMMA3 | {"layer_types": ["full_attention"]}, r"^gemma3_text: layer_types has 1 of 2 layers$"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": None, "long_factor": [1.0]}},
            r"lacks the field 'short_factor'$",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3}},
            r"^longrope has 3 numbers in long_factor, and 4 pairs rotate$",
        ),
        (GEMMA3 | {"use_bidirectional_attention": True}, r"^gemma3_text with use_bidirectional_attention is not supp"),
        (GEMMA3 | {"rope_parameters": LOCALLY_SCALED}, r"^gemma3_text with scaled rotary embeddings in its sliding la"),
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


def test_a_gemma_without_windows_is_written_as_one() -> None:
    """Else its file would be read with those of every sixth layer's pattern."""
    found = from_config({**LLAMA, **GEMMA3, "layer_types": ["full_attention"] * 2})
    assert found.windows == ()
    assert Gemma3TextConfig(**to_config(found)).layer_types == ["full_attention"] * 2
    assert from_config(to_config(found)) == found


def test_what_a_mixtral_leaves_out_is_what_transformers_takes() -> None:
    fields = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    found, theirs = from_config(fields), MixtralConfig()
    assert found.rope_theta == MixtralConfig.default_theta
    assert (found.rms_eps, found.max_position_embeddings) == (theirs.rms_norm_eps, theirs.max_position_embeddings)


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
def test_a_sliding_window_that_transformers_would_add_is_there(family: str) -> None:
    """Which one it is that a config.json without a number means, transformers says: 4096, and none where it is null."""
    fields = LLAMA | {"model_type": family, "use_sliding_window": True, "max_window_layers": 1}
    slides = AutoConfig.for_model(**fields)
    assert (slides.sliding_window, slides.layer_types) == (4096, ["full_attention", "sliding_attention"])
    assert from_config(fields).windows == (0, 4096)
    whole = AutoConfig.for_model(**fields, sliding_window=None)
    assert set(whole.layer_types) == {"full_attention"}
    assert from_config(fields | {"sliding_window": None}).windows == ()


BARE = {name: value for name, value in LLAMA.items() if name != "model_type"} | {"num_attention_heads": 8}


@pytest.mark.parametrize("family", ["mistral", "phi3", "gemma3_text"])
def test_what_a_config_leaves_out_is_what_transformers_takes(family: str) -> None:
    known = AutoConfig.for_model(family, **BARE, **({"pad_token_id": 0} if family == "phi3" else {}))
    found = from_config({"model_type": family, **BARE})
    assert found.num_kv_heads == known.num_key_value_heads
    assert found.rms_eps == known.rms_norm_eps
    assert found.max_position_embeddings == known.max_position_embeddings
    assert found.tie_embeddings == known.tie_word_embeddings
    assert found.head_dim == (getattr(known, "head_dim", None) or 4)
    assert (max(found.windows) if found.windows else None) == known.sliding_window
    ropes = known.rope_parameters
    assert found.rope_theta == ropes.get("full_attention", ropes)["rope_theta"]
    if family == "gemma3_text":
        assert [window > 0 for window in found.windows] == [kind != "full_attention" for kind in known.layer_types]
        assert found.local_rope_theta == ropes["sliding_attention"]["rope_theta"]
        assert found.activation == known.hidden_activation
        assert (found.query_pre_attn_scalar or found.head_dim) == known.query_pre_attn_scalar
