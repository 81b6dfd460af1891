"""Arithmetic of models with experts, against their makers' numbers and by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rljax.config.schema import AlgorithmConfig, LoraConfig, PlanConfig, TinyConfig
from rljax.models.common.architecture import Architecture, Experts
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.experts import idle_parameters
from rljax.pipeline.plan.plan import plan
from rljax.pipeline.plan.targets import GIB
from rljax.pipeline.plan.traffic import traffic
from tests.pipeline.plan.shapes import estimated

THIRTY = Architecture(
    "qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 128, qk_norm=True, experts=Experts(128, 8, 768),
    max_position_embeddings=40960,
)  # fmt: skip
MIXTRAL = Architecture(
    "mixtral", 32000, 4096, 14336, 32, 32, 8, 128, experts=Experts(8, 2, 14336), max_position_embeddings=32768
)

SMALL = Architecture("mixtral", 32000, 1024, 2048, 2, 8, 8, 128, experts=Experts(8, 2, 2048))


@pytest.mark.parametrize(
    ("architecture", "billions", "active"),
    [
        (THIRTY, 30.5, 3.3),  # Qwen3-30B-A3B, https://huggingface.co/Qwen/Qwen3-30B-A3B
        (MIXTRAL, 46.7, 12.9),  # https://mistral.ai/news/mixtral-of-experts
    ],
)
def test_parameters_are_those_that_the_models_makers_say(
    architecture: Architecture, billions: float, active: float
) -> None:
    found = estimated(architecture, {}, 8, 2048)
    assert found.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert (found.parameters - idle_parameters(architecture)) / 1e9 == pytest.approx(active, abs=0.06)


def operations(estimate: Estimate) -> float:
    return estimate.steps()["operations"] / estimate.steps()["tokens"]


def test_a_token_costs_what_it_goes_through() -> None:
    """And not what the model has: 3 passes and a forward pass again, 2 operations a parameter."""
    least = 8 * (3.35e9 - 2 * 151936 * 2048)
    assert least < operations(estimated(THIRTY, {}, 8, 2048)) < 1.5 * least


def test_a_device_has_its_part_of_the_experts_and_of_the_rest() -> None:
    for mesh in ({"fsdp": 8}, {"expert": 8}, {"fsdp": 2, "expert": 4}, {"expert": 2, "tensor": 4}):
        found = estimated(THIRTY, mesh, 8, 2048)
        # float32; in an eighth all but norms, and the few columns of a router that `tensor` does not cut
        assert found.memory()["masters"] == pytest.approx(4 * found.parameters / 8, rel=0.01), mesh


@pytest.mark.parametrize(
    ("architecture", "mesh", "gib"),
    [
        # what libtpu's compiler for v5e:2x4 said of an update of 8 rows of 2048
        (replace(THIRTY, num_layers=2), {"expert": 8}, 7.18),
        (replace(THIRTY, num_layers=2), {"fsdp": 2, "expert": 4}, 5.85),
        (SMALL, {"expert": 4, "tensor": 2}, 0.95),
    ],
)
def test_the_memory_by_arithmetic_is_that_of_the_compiler(
    architecture: Architecture, mesh: dict[str, int], gib: float
) -> None:
    found = estimated(architecture, mesh, 8, 2048, platform="tpu")
    assert sum(found.memory().values()) / GIB == pytest.approx(gib, rel=0.1)


def test_what_is_exchanged_between_devices_with_other_experts() -> None:
    """8 rows of 2048 on 4 devices: 4,096 tokens each, of which a device gets those of 3 others, in bf16."""
    sent = {str(one): one.size for one in traffic(estimated(THIRTY, {"expert": 4}, 8, 2048))}
    tokens = 4096 * 2048 * 2 * 3 * 48  # tokens, numbers, bytes, other devices, layers
    assert sent["all-gather of tokens (expert)"] == pytest.approx(3 * tokens)
    assert sent["reduce-scatter of experts' outputs (expert)"] == pytest.approx(2 * tokens)
    # of Mixtral's token, which has two experts, on 8 devices, two choices go to a device each, an eighth stays
    found = traffic(estimated(MIXTRAL, {"expert": 8}, 8, 2048))
    choices = 2 * 2048 * 4096 * 2 * 7 / 8 * 32  # choices, tokens, numbers, bytes, what leaves, layers
    assert {str(one): one.size for one in found}["ragged-all-to-all of tokens (expert)"] == pytest.approx(3 * choices)
    # twice three quarters of all but experts, embedding and its gradient
    dense = 30.53e9 - 48 * 128 * 3 * 2048 * 768 - 151936 * 2048
    assert sent["all-gather of weights (expert)"] == pytest.approx(2 * dense * 2 * 3 / 4, rel=0.01)


def test_recorded_choices_are_most_of_a_batch_and_the_plan_says_what_is_stored() -> None:
    """Of 48 layers with 8 experts a token, two bytes each on the learner's devices and one in the ledger."""
    plain, replayed = (
        estimated(THIRTY, {"fsdp": 8}, 8, 2048, algorithm=AlgorithmConfig(router_replay=mode))
        for mode in ("off", "replay")
    )
    shape, tokens = plain.row, 1024 * 2048  # trajectories of a step, each as long as may be
    more = replayed.batch - plain.batch
    assert more == pytest.approx(48 * 8 * 2 * shape.slots * shape.rows * shape.length / 8)
    assert more > 0.9 * replayed.batch
    tiny = TinyConfig(family="qwen3_moe", num_layers=2, num_experts=4, num_experts_per_tok=1)
    model = replace(replayed.config.model, tiny=tiny, dtype="fp32")
    config = replace(replayed.config, model=model, plan=PlanConfig(target="h100:8"))
    (line,) = (line for line in plan(config) if isinstance(line, str) and "routes" in line)
    assert line.strip() == f"{2 * tokens / GIB:.2f} GiB of routes a step in the ledger, 2 bytes a token"


def test_the_plan_says_how_many_parameters_a_token_goes_through() -> None:
    tiny = TinyConfig(family="qwen3_moe", num_experts=4, num_experts_per_tok=1, hidden_size=64, intermediate_size=256)
    config = estimated(THIRTY, {}, 8, 256, platform="cpu").config
    config = replace(config, model=replace(config.model, tiny=tiny, dtype="fp32"), plan=PlanConfig(target="h100:1"))
    line = next(line for line in plan(config) if isinstance(line, str) and line.startswith("learner"))
    # 2 layers of 4 experts of 3 × 64 × 256, and a token goes through a fourth of them
    total, active = (float(number) for number in re.findall(r"([\d.]+) M", line))
    assert total - active == pytest.approx(2 * 3 * 3 * 64 * 256 / 1e6, abs=0.11)
    assert "parameters, of which a token goes through" in line
    config = replace(config, model=replace(config.model, lora=LoraConfig(rank=8, targets=("q_proj", "v_proj"))))
    line = next(line for line in plan(config) if isinstance(line, str) and line.startswith("learner"))
    # (rows + columns) · rank, of 4 heads of queries and 2 of values, each 32 wide, in 2 layers
    adapter = 2 * 8 * ((64 + 128) + (64 + 64)) / 1e6
    told = f"{adapter:.2f} M parameters of adapters on {total} M frozen ones, of which a token goes through {active} M"
    assert line == f"learner  {told}, fp32, mesh 1 device"
