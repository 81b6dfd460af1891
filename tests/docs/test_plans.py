"""The plans on docs/choose.md are what mode=plan prints, but for lines that depend on the reader's machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rljax.config.arguments import parse_arguments
from rljax.config.load import load_config
from rljax.pipeline.plan.plan import plan
from tests.docs.pages import Block, blocks, commands

PLANS = [block for block in blocks("docs/choose.md") if "mode=plan" in block.text and block.language == "console"]
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16", "rope_theta": 1e6}
SHAPES = {  # config.json of Qwen/NAME on the hub
    "Qwen2.5-0.5B-Instruct": (896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B-Instruct": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-7B-Instruct": (3584, 18944, 28, 28, 4, 152064, False),
}
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)


@pytest.mark.parametrize("block", PLANS, ids=str)
def test_a_plan_is_what_is_printed(block: Block, tmp_path: Path) -> None:
    (words,) = commands(block.text)
    path, overrides = parse_arguments(words)
    name = overrides.get("model.path", "Qwen/Qwen2.5-1.5B-Instruct").partition("/")[2]
    fields = QWEN2 | {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(fields | dict(zip(FIELDS, SHAPES[name], strict=True))))
    config = load_config(path, {**overrides, "model.path": str(tmp_path)})
    printed = [part for line in plan(config) if isinstance(line, str) for part in line.splitlines()]
    position = 0
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines()[1:]:
        if line == "…":
            continue
        assert line in printed[position:], line
        position = printed.index(line, position) + 1


def test_there_are_plans_for_one_gpu_for_eight_and_for_a_cluster() -> None:
    targets = {target for block in PLANS for target in ("h100:1", "l4:1", "h100:8", "h100:2x8") if target in block.text}
    assert targets == {"h100:1", "l4:1", "h100:8", "h100:2x8"}
