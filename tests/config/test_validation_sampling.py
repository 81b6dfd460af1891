"""How validation samples, what an engine computes in: what each engine honours, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.config.validate import ConfigError

QUICKSTART = str(Path(__file__).parents[2] / "configs" / "quickstart.py")
VAL = "sidecar.val_generating_args"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({f"{VAL}.min_p": 0.1}, f"{VAL}.min_p=0.1: sidecar.engine=embedded has none; leave it out, or write"),
        ({f"{VAL}.repetition_penalty": 1.2}, f"{VAL}.repetition_penalty=1.2: sidecar.engine=embedded has none"),
        ({f"{VAL}.repetition_penalty": 0.0}, f"{VAL}.repetition_penalty=0.0: must be above 0"),
        (
            {"sidecar.generating_args.repetition_penalty": 1.2, "sidecar.engine": "vllm"},
            "sidecar.generating_args.repetition_penalty=1.2: what is sampled so is not of the policy that is trained",
        ),
        (
            {"rollout.val_env_manager.group_size": 4},
            "rollout.val_env_manager.group_size=4: greedy episodes of one seed are all the same; write 1, or a",
        ),
        ({"sidecar.dtype": "fp16"}, "sidecar.dtype='fp16': sidecar.engine=embedded computes in fp32 or bf16"),
        ({"model.dtype": "fp16"}, "model.dtype='fp16': not one of fp32, bf16"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(QUICKSTART, keys)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_what_an_engine_has_is_taken() -> None:
    keys = {f"{VAL}.min_p": 0.1, f"{VAL}.repetition_penalty": 1.2, f"{VAL}.temperature": 0.7, f"{VAL}.top_k": 20}
    more = {"rollout.val_env_manager.group_size": 4, "sidecar.dtype": "fp16", "sidecar.engine": "vllm"}
    config = load_config(QUICKSTART, {**keys, **more})
    assert config.sidecar.val_generating_args.repetition_penalty == 1.2
    assert config.engine_dtype == "fp16"
