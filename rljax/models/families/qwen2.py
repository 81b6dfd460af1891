"""Qwen2 and Qwen2.5: query, key and value have a bias, the attention's output has none."""

from rljax.models.common.block import Block
from rljax.models.families.family import Family


class Qwen2Block(Block):
    """Layer whose attention has no bias at its output."""

    biased_output = False


QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    block=Qwen2Block,
    fixed={"attention_bias": True},
    written={"use_sliding_window": False},
)
