"""What a plan says, against numbers from the compiler and from hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.config.schema import (
    Config,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PlanConfig,
    SidecarConfig,
)
from rljax.config.validate import ConfigError
from rljax.learner.learner import Learner
from rljax.main import main
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.pipeline.plan.compiled import abstract_programs
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.plan import nearest_mesh, required
from rljax.pipeline.plan.targets import GIB, Target, find_target
from tests.learner.made_up import ARCHITECTURE, make_config, make_params
from tests.learner.test_learner_programs import KEYS

SEVEN = Architecture("qwen2", 152064, 3584, 18944, 28, 28, 4, 128, attention_bias=True, max_position_embeddings=32768)
THIRTY_TWO = Architecture("qwen3", 151936, 5120, 25600, 64, 64, 8, 128, qk_norm=True, max_position_embeddings=40960)
BIG = [
    # what XLA's ahead-of-time compilers for 8 and 64 H100s and for v5e:4x4 said of this learner's update
    (SEVEN, {"fsdp": 8}, 8, 8192, 21.3),
    (SEVEN, {"fsdp": 8}, 8, 32768, 32.5),
    (SEVEN, {"fsdp": 2, "tensor": 4}, 2, 8192, 20.0),
    (SEVEN, {"fsdp": 16}, 16, 8192, 13.7),
    (SEVEN, {"fsdp": 4, "tensor": 4}, 4, 8192, 11.1),
    (THIRTY_TWO, {"fsdp": 64}, 64, 8192, 17.7),
]


def estimated(architecture: Architecture, mesh: dict[str, int], rows: int, row: int, **keys: Any) -> Estimate:
    config = Config(
        mode="plan",
        rollout_batch_size=1024,
        group_size=4,
        model=ModelConfig(dtype="bf16", remat="full", max_prompt_tokens=row // 2, max_response_tokens=row // 2),
        learner=LearnerConfig(rows_per_microbatch=rows, mesh=MeshConfig(**mesh)),
        **keys,
    )
    return Estimate(config, architecture, config.learner.mesh)


@pytest.mark.parametrize(("architecture", "mesh", "rows", "row", "gib"), BIG)
def test_the_memory_by_arithmetic_is_that_of_the_compiler(
    architecture: Architecture, mesh: dict[str, int], rows: int, row: int, gib: float
) -> None:
    found = sum(estimated(architecture, mesh, rows, row).memory().values()) / GIB
    assert found == pytest.approx(gib, rel=0.1)


def test_kinds_of_memory_by_hand() -> None:
    """A matrix of 7,615,616,512 parameters in all: 4 bytes of master, 8 of moments, 4 + 2 of gradients, 2 of a copy, on
    8 devices; what is too small to be cut is of no account. An engine's KV: 64 requests, 28 layers, 4 heads of 128.
    """
    estimate = estimated(SEVEN, {"fsdp": 8}, 8, 8192, sidecar=SidecarConfig(max_concurrency=64))
    assert estimate.parameters == 7_615_616_512
    found, each = estimate.memory(), 7_615_616_512 / 8
    for kind, width in {"masters": 4, "moments": 8, "gradients": 6, "copies": 2}.items():
        assert found[kind] == pytest.approx(width * each, rel=1e-3)
    assert estimate.engine() == {"weights": 2 * 7_615_616_512, "KV": 64 * 8192 * 28 * 2 * 4 * 128 * 2}
    moved = estimate.traffic()  # weights thrice: forward, once more for the backward pass, and there
    assert moved == {
        "all-gather of weights (fsdp)": pytest.approx(3 * 2 * 7_615_616_512 * 7 / 8),
        "reduce-scatter of gradients (fsdp)": pytest.approx(2 * 7_615_616_512 * 7 / 8),
    }
    assert not list(estimate.dropped())


def test_keys_of_the_step_are_counted() -> None:
    """Moments of 2 + 4 bytes; gradients of 4 + 4 that leave no copy; the stream between blocks cut in 4 by `tensor`."""
    mesh = {"fsdp": 2, "tensor": 4}

    def with_keys(**keys: Any) -> Estimate:
        base = estimated(SEVEN, mesh, 2, 8192)
        config = dataclasses.replace(base.config, learner=dataclasses.replace(base.config.learner, **keys))
        return Estimate(config, SEVEN, config.learner.mesh)

    each = 7_615_616_512 / 8
    assert with_keys(optimizer=OptimizerConfig(mu_dtype="bf16")).memory()["moments"] == pytest.approx(
        6 * each, rel=1e-3
    )
    wide = with_keys(reduce_dtype="fp32")
    assert wide.memory()["gradients"] == pytest.approx(8 * each, rel=1e-3)
    assert wide.memory()["copies"] == 0
    plain = with_keys()
    name = "reduce-scatter of gradients (fsdp)"
    assert wide.traffic()[name] == pytest.approx(2 * plain.traffic()[name])
    cut = with_keys(sequence_parallel=True)
    # of each of 28 layers, 8192 places of one row in bf16, three quarters; of the layer at work, of the 4 streams 2
    less = 8192 * 3584 * 2 * 3 / 4 * (28 + 2)
    assert plain.memory()["activations"] - cut.memory()["activations"] == pytest.approx(less)
    assert "reduce-scatter and all-gather of activations (tensor)" in cut.traffic()


def test_rules_that_do_not_divide_are_named() -> None:
    found = list(estimated(SEVEN, {"tensor": 8}, 8, 8192).dropped())
    assert "heads: 28 is not divided by tensor" in found
    assert "key-value heads: 4 is not divided by tensor" in found
    assert not any(line.startswith("gate") for line in found)


def test_the_nearest_mesh_is_the_smallest_that_fits() -> None:
    """1 device needs 18 bytes a parameter and more, 127 GiB; of 79 GiB two suffice with the engine elsewhere."""
    target = find_target("h100:8")
    estimate = estimated(SEVEN, {}, 8, 2048)
    assert required(estimate, target) > 127 * GIB
    assert "--config.learner.mesh.fsdp=2 --config.learner.mesh.tensor=1 " in (nearest_mesh(estimate, target) or "")
    assert nearest_mesh(estimate, dataclasses.replace(target, devices=1)) is None
    whole = Target("", Hardware("gpu"), 2, 0.0, None, None)
    two = estimated(SEVEN, {"fsdp": 2}, 8, 2048)
    beside = sum(two.memory().values()) + sum(two.engine().values())
    assert required(two, whole) == beside, "no device is left for the engine"


@pytest.mark.parametrize(("name", "devices"), [("v5e:4x4", 16), ("v5p:2x2x1", 4), ("h100:8", 8), ("h100:8x8", 64)])
def test_targets_have_as_many_devices_as_their_shape(name: str, devices: int) -> None:
    assert find_target(name).devices == devices


@pytest.mark.parametrize("name", ["h200:8", "v5e:", "v5e:4x", "here:8", "h100:0"])
def test_other_targets_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^plan\.target='.*': write here, or a chip and how many"):
        Config(mode="plan", plan=PlanConfig(target=name))


@pytest.mark.parametrize("name", KEYS)
def test_a_plan_compiles_what_the_learner_runs(name: str) -> None:
    config = make_config(algorithm=KEYS[name])
    learner = Learner(config, ARCHITECTURE, make_params())
    planned = abstract_programs(config, ARCHITECTURE, jax.devices())
    real = [program for program in learner.programs(20) if not program.publishes]
    for mine, its in zip(planned, real, strict=True):
        assert (mine.name, mine.likely) == (its.name, its.likely)
        assert jax.tree.map(str, mine.arguments) == jax.tree.map(str, its.arguments)


def test_the_command_says_what_it_cannot_know_and_exits_by_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}
    more = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768}
    (tmp_path / "config.json").write_text(json.dumps(shape | heads | more | {"rope_theta": 1e6, "hidden_act": "silu"}))
    command = ["--config=configs/gsm8k.py", "--config.mode=plan", f"--config.model.path={tmp_path}"]
    assert main([*command, "--config.plan.target=h100:8"]) == 0
    said = capsys.readouterr().out
    assert "1,543.7 M parameters, bf16" in said
    assert "staleness at most 10, 128 groups of 8 ahead at most" in said
    assert "512 rows of 2048 a step" in said
    assert "unknown  what the compiler makes of it" in said
    assert said.splitlines()[-1].startswith("fits: ")
    assert main([*command, "--config.plan.target=h100:1", "--config.learner.mesh.fsdp=2"]) == 1
    assert "does not fit: the mesh needs 2 devices, there are 1" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"], "no weights are read or made"
