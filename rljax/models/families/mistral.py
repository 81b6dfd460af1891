"""Mistral: Llama's layer without biases; every layer of the first versions has a sliding window."""

from rljax.models.families.family import Family
from rljax.models.families.windows import EVERY_LAYER

MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    windows=EVERY_LAYER,
    fixed={"attention_bias": False},
    defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072},
)
