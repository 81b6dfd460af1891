"""Qwen2 and Qwen2.5: query, key and value have a bias, the attention's output has none."""

from rljax.models.families.family import Family

QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    fixed={"attention_bias": True, "output_bias": False},
    written={"use_sliding_window": False},
)
