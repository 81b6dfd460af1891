"""Llama 2 and 3, and models of the same architecture (SmolLM2, for one)."""

from rljax.models.families.family import Family

LLAMA = Family("llama", "LlamaForCausalLM", written={"mlp_bias": False})
