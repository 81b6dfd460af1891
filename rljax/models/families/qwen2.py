"""Qwen2 and Qwen2.5: query, key and value have a bias, the attention's output has none."""

from rljax.models.common.block import Block
from rljax.models.families.family import Family
from rljax.models.families.windows import FROM_A_LAYER_ON, QWEN_WINDOWS


class Qwen2Block(Block):
    """Layer whose attention has no bias at its output."""

    biased_output = False


QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    block=Qwen2Block,
    fixed={"attention_bias": True},
    windows=FROM_A_LAYER_ON,
    defaults=QWEN_WINDOWS,
)
