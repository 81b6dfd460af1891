"""What needs no plug-in of `bench.aot`; `tests/pipeline/plan/test_for_tpus.py` runs the rest."""

from __future__ import annotations

import json

import pytest

import bench.aot
from bench.aot import CASES, LOWERED, Case, lower, main, row_of
from rljax.pipeline.plan.collectives import Collective
from rljax.pipeline.plan.compiled import Compiled

ALONE = {(case.target, case.row, case.dtype): case for case in LOWERED if not case.mesh}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (("tpu", 200, "bf16"), "splash"),
        (("cuda", 256, "bf16"), "triton"),
        (("cuda", 256, "fp32"), "blockwise, since the kernel takes bfloat16 and float16, not float32"),
    ],
)
def test_a_lowered_update_names_its_body_and_why_it_is_not_the_kernel(key: tuple[str, int, str], said: str) -> None:
    assert lower(ALONE[key]) == said


def test_a_row_of_the_table() -> None:
    case = Case("Qwen2.5-7B", "h100:8", {"fsdp": 2, "tensor": 4}, 8, 2048)
    begun = "| Qwen2.5-7B | h100:8 | fsdp 2 · tensor 4 | 8 × 2048 |"
    gather = Collective("all-gather", (("bf16", (1024, 1024, 128)),), 28)
    found = Compiled("update", 2.5 * 2**30, 11.6, 0.0, frozenset({"triton"}), (gather,))
    assert row_of(case, found) == f"{begun} triton | 2.50 | all-gather 28, 7.00 | 12 |"
    assert row_of(case, "the plug-in is not here") == f"{begun} the plug-in is not here |"


def test_cases_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench.aot, "devices_of", lambda target: f"no plug-in for {target}")
    assert main("test") == len(CASES["test"])
    said = [json.loads(line)["error"] for line in capsys.readouterr().out.splitlines()]
    assert said == ["no plug-in for v5e:2x4"] * len(CASES["test"])
