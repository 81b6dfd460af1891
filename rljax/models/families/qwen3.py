"""Qwen3, dense: queries and keys are normalised per head."""

from rljax.models.families.family import Family

QWEN3 = Family("qwen3", "Qwen3ForCausalLM", fixed={"qk_norm": True}, written={"use_sliding_window": False})
