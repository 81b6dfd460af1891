"""What is estimated of an update, against numbers from the compiler and from hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import pytest

from rljax.config.environments import EnvironmentConfig, TrainEnvManagerConfig
from rljax.config.schema import (
    AlgorithmConfig,
    DistillConfig,
    KlConfig,
    MeshConfig,
    OptimizerConfig,
    RolloutConfig,
    SidecarConfig,
    TasksetConfig,
    TeacherConfig,
)
from rljax.models.common.architecture import Architecture
from rljax.models.hf_names import tensor_shapes
from rljax.pipeline.plan.compiled import abstract_programs, compiled
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.targets import GIB
from rljax.pipeline.plan.traffic import traffic
from tests.pipeline.plan.shapes import HALF, ONE_AND_A_HALF, SEVEN, THIRTY_TWO, estimated, target_named

BIG = [
    # what XLA's ahead-of-time compilers for H100s, v5e:4x4 and v5e:2x4 said of this learner's update (bench/RESULTS.md)
    (ONE_AND_A_HALF, {}, 8, 8192, 40.28),
    (SEVEN, {"fsdp": 8}, 8, 8192, 21.95),
    (SEVEN, {"fsdp": 2, "tensor": 4}, 8, 8192, 26.65),
    (SEVEN, {"fsdp": 2, "sequence": 4}, 2, 32768, 74.52),
    (THIRTY_TWO, {"fsdp": 64}, 64, 8192, 19.01),
    (THIRTY_TWO, {"fsdp": 8, "tensor": 8}, 64, 8192, 56.16),
    (THIRTY_TWO, {"fsdp": 8, "sequence": 2, "tensor": 4}, 64, 8192, 43.65),
    (THIRTY_TWO, {"fsdp": 32, "sequence": 2}, 32, 16384, 28.54),
    (ONE_AND_A_HALF, {}, 8, 2048, 31.62),  # an H100
    (ONE_AND_A_HALF, {"fsdp": 16}, 16, 2048, 3.27),
    (ONE_AND_A_HALF, {"fsdp": 8}, 8, 2048, 4.93),
    (ONE_AND_A_HALF, {"fsdp": 2, "tensor": 4}, 8, 2048, 4.79),
    (ONE_AND_A_HALF, {"fsdp": 4, "sequence": 2}, 4, 8192, 8.15),
    (SEVEN, {"fsdp": 16}, 16, 8192, 12.72),
    (SEVEN, {"fsdp": 4, "tensor": 4}, 4, 8192, 11.12),
]


@pytest.mark.parametrize(("architecture", "mesh", "rows", "row", "gib"), BIG)
def test_the_memory_by_arithmetic_is_that_of_the_compiler(
    architecture: Architecture, mesh: dict[str, int], rows: int, row: int, gib: float
) -> None:
    found = sum(estimated(architecture, mesh, rows, row).memory().values()) / GIB
    assert found == pytest.approx(gib, rel=0.1)


def test_the_memory_without_remat_is_that_of_the_compiler() -> None:
    """v5e:2x4, 1.5B, 8 rows of 2048: 7.38 GiB."""
    estimate = estimated(ONE_AND_A_HALF, {"fsdp": 8}, 8, 2048, remat="none")
    assert sum(estimate.memory().values()) / GIB == pytest.approx(7.38, rel=0.1)


@pytest.mark.parametrize(
    ("architecture", "rows", "dtype", "remat", "gib"),
    [
        # what XLA said of the update on one CPU
        (ONE_AND_A_HALF, 8, "bf16", "full", 41.98),
        (ONE_AND_A_HALF, 2, "bf16", "full", 37.00),
        (ONE_AND_A_HALF, 8, "fp32", "full", 35.44),
        (SEVEN, 1, "bf16", "full", 173.48),
        (HALF, 8, "bf16", "full", 14.82),
        (HALF, 8, "bf16", "none", 36.09),
        (HALF, 8, "bf16", "dots", 34.75),
        (HALF, 8, "fp32", "none", 30.84),
    ],
)
def test_the_memory_on_a_cpu_by_arithmetic_is_that_of_the_compiler(
    architecture: Architecture, rows: int, dtype: str, remat: str, gib: float
) -> None:
    found = estimated(architecture, {}, rows, 2048, remat, platform="cpu", dtype=dtype).memory()
    assert sum(found.values()) / GIB == pytest.approx(gib, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rank"), [("bf16", None), ("fp32", None), ("bf16", 16), ("fp32", 16)])
def test_a_cpu_takes_what_is_said(dtype: str, rank: int | None) -> None:
    """The compiler of this machine, asked for a small shape."""
    architecture = Architecture("llama", 32768, 768, 2048, 2, 12, 4, 64)
    estimate = estimated(architecture, {}, 4, 512, platform="cpu", dtype=dtype, batch=16, rank=rank)
    programs = abstract_programs(estimate.config, architecture, jax.devices())
    update = next(program for program in programs if program.name.startswith("update "))
    (said,) = compiled([update], "cpu")
    assert sum(estimate.memory().values()) == pytest.approx(said.peak, rel=0.1)


def test_memory_of_an_adapter_by_hand() -> None:
    """7,615,616,512 frozen in bf16. Of rank 32, a layer has 32 times the rows and columns of q and o (3584 + 3584), k
    and v (3584 + 512), gate, up and down (3584 + 18944): 80,740,352 numbers in all. The reference is the base.
    """
    kl = AlgorithmConfig(kl=KlConfig(where="loss", coef=0.1))
    estimate = estimated(SEVEN, {}, 1, 2048, rank=32, algorithm=kl)
    adapter = 28 * 32 * (2 * 7168 + 2 * 4096 + 3 * 22528)
    assert estimate.adapter == adapter == 80_740_352
    found = estimate.memory()
    assert "reference" not in found
    assert found["frozen base"] == 2 * 7_615_616_512
    assert (found["masters"], found["gradients"], found["copies"]) == (4 * adapter, 4 * adapter, 2 * adapter)
    assert found["moments"] == pytest.approx(8 * adapter, abs=64)
    renewed = AlgorithmConfig(kl=KlConfig(where="loss", coef=0.1, refresh_steps=5))
    assert estimated(SEVEN, {}, 1, 2048, rank=32, algorithm=renewed).memory()["reference"] == 2 * adapter
    critic = estimated(SEVEN, {}, 1, 2048, rank=32, algorithm=AlgorithmConfig(adv_estimator="gae")).memory()["critic"]
    assert critic == pytest.approx(12 * (adapter + 3584), abs=64)
    saved = estimate.host({"model.layers.0.x": 1})["to save a checkpoint"]
    assert saved == pytest.approx(12 * adapter, abs=64)


@pytest.mark.parametrize(("engine", "held"), [("vllm", 3), ("embedded", 4)])
def test_versions_that_are_held_at_once_are_adapters_beside_the_base(engine: str, held: int) -> None:
    """At a lag of 2 three versions may be in use; the embedded engine has the newest by itself too."""
    sidecar = SidecarConfig(engine=engine, update_policy="pin")
    estimate = estimated(SEVEN, {}, 1, 2048, rank=32, sidecar=sidecar, async_generation_ratio=2.0)
    assert estimate.engine()["weights"] == 2 * (7_615_616_512 + held * 80_740_352)


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 8}, {"fsdp": 2, "sequence": 4}])
def test_logits_are_those_of_a_device(mesh: dict[str, int]) -> None:
    """`logprob_chunk` says how many tokens of a device: 512 of 151,936 words in float32 on any mesh."""
    estimate = estimated(ONE_AND_A_HALF, mesh, 8, 2048, remat="full", chunk=512)
    assert estimate.logits == 512 * 151_936 * 4


def test_logits_of_fewer_tokens_and_of_a_vocabulary_that_is_cut() -> None:
    """8 rows, half of each trained: 8192 tokens, on 8 devices 1024; with a vocabulary in 4 parts 2 · 4096 · 37,984."""
    assert estimated(ONE_AND_A_HALF, {"fsdp": 8}, 8, 2048, chunk=10**6).logits == 1024 * 151_936 * 4
    assert estimated(ONE_AND_A_HALF, {"fsdp": 2, "tensor": 4}, 8, 2048, chunk=10**6).logits == 4096 * 37_984 * 4


def test_kinds_of_memory_by_hand() -> None:
    """A matrix of 7,615,616,512 parameters in all: 4 bytes of master, 8 of moments, 4 of gradients, 2 of a copy, on 8
    devices; what is too small to be cut is of no account. An engine's KV: 64 requests, 28 layers, 4 heads of 128.
    """
    estimate = estimated(SEVEN, {"fsdp": 8}, 8, 8192, sidecar=SidecarConfig(max_concurrency=64))
    assert estimate.parameters == 7_615_616_512
    found, each = estimate.memory(), 7_615_616_512 / 8
    for kind, width in {"masters": 4, "moments": 8, "gradients": 4, "copies": 2}.items():
        assert found[kind] == pytest.approx(width * each, rel=1e-3)
    # Two versions while one follows the other, with the embedding as it is received; a cache that is resized, with one
    # of its 56 arrays twice.
    weights, cache = 2 * 7_615_616_512, 64 * 8192 * 28 * 2 * 4 * 128 * 2
    following = weights + 2 * 152_064 * 3584 + cache / 56
    assert estimate.engine() == {"weights": weights, "the next version": following, "KV": cache}
    assert not list(estimate.dropped())


def moved(estimate: Estimate) -> dict[tuple[str, str], float]:
    return {(sent.collective, sent.what): sent.size for sent in traffic(estimate)}


def test_weights_move_as_in_the_compiled_program() -> None:
    """XLA's program for 8 H100s gathers 24.5 GiB of layers and twice the head, of 1.015, a microbatch, and scatters
    12.4 and once the head; a device has an eighth of it already.
    """
    found = moved(estimated(SEVEN, {"fsdp": 8}, 8, 8192))
    assert found == {
        ("all-gather", "weights"): pytest.approx((24.5 + 2 * 1.015) * GIB * 7 / 8, rel=0.02),
        ("reduce-scatter", "gradients"): pytest.approx((12.4 + 1.015) * GIB * 7 / 8, rel=0.02),
    }


def test_keys_values_and_their_gradients_move_over_sequence() -> None:
    """A row of 8192 on 2 devices; 28 layers, 2 heads of 128, keys and values, bf16: a device gets the other half of
    them, 117 MB, for the forward pass and when it computes it again, and of their gradients once.
    """
    found, half = moved(estimated(ONE_AND_A_HALF, {"sequence": 2}, 1, 8192)), 4096 * 28 * 2 * 128 * 2 * 2
    assert found[("all-gather", "keys and values")] == 2 * half
    assert found[("reduce-scatter", "their gradients")] == half
    assert found[("all-reduce", "gradients")] == pytest.approx(1_543_714_304 * 2, rel=1e-3)  # both ways, half of it
    once = moved(estimated(ONE_AND_A_HALF, {"sequence": 2}, 1, 8192, remat="none"))
    assert once[("all-gather", "keys and values")] == half


def test_activations_move_over_tensor() -> None:
    """4096 tokens of 1536 numbers, 28 layers, two sums forward, two backward and one computed again; each device
    receives half of every sum twice.
    """
    found = moved(estimated(ONE_AND_A_HALF, {"tensor": 2}, 2, 2048))
    assert found == {("all-reduce", "activations"): 4096 * 1536 * 2 * 28 * 5}


@pytest.mark.parametrize(
    ("target", "mesh", "axis", "over", "gigabytes"),
    [
        ("h100:8", {"fsdp": 8}, "fsdp", "NVLink", 450),
        ("h100:8x8", {"fsdp": 8, "data": 8}, "fsdp", "NVLink", 450),
        ("h100:8x8", {"fsdp": 8, "data": 8}, "data", "the network", 50),  # each GPU by its own adapter
        ("h100:8x8", {"fsdp": 64}, "fsdp", "the network", 400),  # eight adapters a machine for all of them
        ("h100:8x8", {"fsdp": 16, "tensor": 4}, "fsdp", "the network", 100),
        ("l4:4", {"fsdp": 4}, "fsdp", "PCIe", 32),
        ("v5e:4x4", {"fsdp": 16}, "fsdp", "ICI, 2 axes", 90),  # of four chips each, no ring
        ("v5e:16x16", {"data": 16, "fsdp": 16}, "fsdp", "ICI, 1 axis", 90),  # a ring, both ways
        ("v5e:4x4", {"fsdp": 4, "tensor": 4}, "tensor", "ICI, 1 axis", 45),
        ("v5e:4x4", {"fsdp": 8, "tensor": 2}, "tensor", "ICI, part of 1 axis", 45),
        ("v5p:2x2x4", {"fsdp": 16}, "fsdp", "ICI, 3 axes", 4 * 90),
    ],
)
def test_each_mesh_axis_is_sent_over_its_links(
    target: str, mesh: dict[str, int], axis: str, over: str, gigabytes: float
) -> None:
    assert target_named(target).link(MeshConfig(**mesh), axis) == (over, gigabytes * 1e9)


def in_bf16(architecture: Architecture) -> dict[str, int]:
    return {name: 2 * math.prod(shape) for name, shape in tensor_shapes(architecture).items()}


def test_the_host_has_what_was_measured() -> None:
    """`bench.host_memory` with Qwen2.5-0.5B's shape: a push by files took 545 MB beyond what stays, two groups as large
    as the embedding. Masters and moments of a checkpoint: 12 bytes a parameter.
    """
    assert estimated(HALF, {}, 1, 256).host(in_bf16(HALF))["to publish a version"] == 2 * 494_032_768, "a whole copy"
    host = estimated(HALF, {}, 1, 256, sync_overlap=False).host(in_bf16(HALF))
    assert host["to publish a version"] == pytest.approx(545e6, rel=0.02)
    assert host["to load the model"] == 151_936 * 896 * 2
    assert host["to save a checkpoint"] == pytest.approx(12 * 494_032_768, rel=1e-3)
    kept = estimated(HALF, {}, 1, 256, sync_deltas=8, sync_overlap=False).host(in_bf16(HALF))["to publish a version"]
    assert kept == host["to publish a version"] + 2 * 494_032_768, "the version before, to compare with"
    on_cpu = estimated(HALF, {}, 1, 256, sync_method="memory", platform="cpu").host(in_bf16(HALF))
    assert on_cpu["to publish a version"] == 2 * 494_032_768
    assert "to save a checkpoint" not in on_cpu, "Orbax writes what the host has already"
    for mesh, own in (({"fsdp": 64}, 8 / 64), ({"data": 8, "fsdp": 8}, 1)):  # of eight GPUs of each of eight machines
        each = estimated(HALF, mesh, 64, 256).host(in_bf16(HALF), devices=8)
        assert each["to save a checkpoint"] == pytest.approx(12 * 494_032_768 * own, rel=1e-3)


def test_versions_that_stay_on_the_learners_devices() -> None:
    """Of `sync_method=memory`: the two newest, and the one that is pushed, 2 bytes a parameter."""
    each = 7_615_616_512 / 8
    found = estimated(SEVEN, {"fsdp": 8}, 8, 2048, sync_method="memory")
    assert found.memory()["published versions"] == pytest.approx(3 * 2 * each, rel=1e-3)
    assert found.host(in_bf16(SEVEN))["to publish a version"] == 0
    on_cpu = estimated(SEVEN, {"fsdp": 8}, 8, 2048, sync_method="memory", platform="cpu")
    assert "published versions" not in on_cpu.memory(), "where the host has them"
    assert "published versions" not in estimated(SEVEN, {"fsdp": 8}, 8, 2048).memory()


def test_a_checkpoint_has_reference_and_critic_too() -> None:
    """12 bytes a parameter of the policy, 2 of a reference in bf16, 12 of a critic."""
    algorithm = AlgorithmConfig(kl=KlConfig(where="loss"), adv_estimator="gae")
    host = estimated(HALF, {}, 1, 256, algorithm=algorithm).host(in_bf16(HALF))
    assert host["to save a checkpoint"] == pytest.approx((12 + 2 + 12) * 494_032_768, rel=1e-3)


def test_a_teacher_is_counted_beside_the_policy() -> None:
    """Its 7.6 billion parameters, 2 bytes each, over 8 devices, in no checkpoint; of each minibatch a weight and a
    score of a token more; a forward pass; and the largest tensor of its files, where that is larger.
    """
    distill = DistillConfig(teachers={"big": TeacherConfig(path="x/y")})
    plain = estimated(HALF, {"fsdp": 8}, 8, 2048)
    config = dataclasses.replace(plain.config, algorithm=AlgorithmConfig(distill=distill))
    scorers = {"algorithm.distill.teachers.big": SEVEN}
    taught = dataclasses.replace(plain, config=config, scorers=scorers)
    assert taught.memory()["teacher big"] == pytest.approx(2 * 7_615_616_512 / 8, rel=1e-3)
    shape, room, _ = plain.packed
    assert taught.batch - plain.batch == 4 * shape.slots * shape.rows * (shape.length + room) / 8
    tokens, trained, head = 1024 * 2048, 1024 * 1024, 152_064 * 3584
    # its embedding, in which tokens are looked up, is in no product
    layers = 2 * (7_615_616_512 - 2 * head) + 28 * 2 * 2048 * 28 * 128
    more = taught.steps()["operations"] - plain.steps()["operations"]
    assert more == pytest.approx(tokens * layers + trained * 2 * head, rel=1e-6)
    mine, its = in_bf16(HALF), in_bf16(SEVEN)
    assert taught.host(mine, its)["to load the model"] == 2 * head
    assert taught.host(mine, its)["to save a checkpoint"] == plain.host(mine)["to save a checkpoint"]


def test_operations_of_a_step() -> None:
    """1024 rows of 2048 tokens of which 1024 are trained; a product is 2 operations a parameter. Layers: forward, again
    for the backward pass, backward 2; of a head, that reads trained places, forward and backward 2. Attention sees half
    of the row: 2 · 2 · 24 · 2048 · 14 · 64 / 2 operations a token.
    """
    tokens, trained, head = 1024 * 2048, 1024 * 1024, 151_936 * 896
    layers = 2 * (494_032_768 - head) + 24 * 2 * 2048 * 14 * 64
    once = {"layers": tokens * layers, "head": trained * 2 * head}
    update = 4 * once["layers"] + 3 * once["head"]
    plain = estimated(HALF, {}, 1, 2048)
    assert plain.steps()["operations"] == pytest.approx(update)
    algorithm = AlgorithmConfig(
        kl=KlConfig(where="loss"), adv_estimator="gae", pg_variant="decoupled_ppo", ppo_epochs=2
    )
    more = estimated(HALF, {}, 1, 2048, algorithm=algorithm)
    forward = once["layers"] + once["head"]
    # two updates of the policy; reference and proximal policy; values, and two updates of the critic, which has no head
    expected = 2 * update + 2 * forward + once["layers"] + 2 * 4 * once["layers"]
    assert more.steps()["operations"] == pytest.approx(expected)


def test_a_token_of_a_layer_with_a_window_sees_no_more_than_the_window() -> None:
    """Of 2048 places the first 512 see 256 on average, the others 512: 448. Half of the layers have no window: 1024."""
    slides = dataclasses.replace(HALF, windows=(512, 0) * 12)
    saved = 1024 * 2048 * 4 * 2 * 2 * 12 * (1024 - 448) * 14 * 64  # of the four passes over the layers
    less = estimated(HALF, {}, 1, 2048).steps()["operations"] - estimated(slides, {}, 1, 2048).steps()["operations"]
    assert less == pytest.approx(saved)


def test_turns_that_are_rows_reused_groups_and_demonstrations_are_counted() -> None:
    """1024 trajectories of 5 turns, 5120 rows of 2048; beside 256 groups 64 reused ones, a fifth of all; beside 1024
    trajectories 256 demonstrations, a fifth of all, of one row each.
    """
    lake = EnvironmentConfig(id="rljax/FrozenLake-v0", max_turns=5, max_actions=5, history_length=0)
    played: dict[str, Any] = {
        "custom_envs": {"Lake": lake},
        "rollout": RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("Lake",))),
    }
    plain, turns = estimated(HALF, {}, 1, 2048).steps(), estimated(HALF, {}, 1, 2048, **played).steps()
    assert turns == {name: pytest.approx(5 * value) for name, value in plain.items()}
    algorithm = AlgorithmConfig(max_uses=2, reuse_ratio=0.2)
    assert estimated(HALF, {}, 1, 2048, algorithm=algorithm, **played).steps()["tokens"] == 1280 * 5 * 2048
    base = estimated(HALF, {}, 1, 2048, **played)
    shown = AlgorithmConfig(expert_data_ratio=0.2, pg_variant="mix", loss={"variant": "ppo"})
    tasks = dataclasses.replace(base.config.tasks, expert=TasksetConfig(source="demonstrations.jsonl"))
    beside = dataclasses.replace(base, config=dataclasses.replace(base.config, algorithm=shown, tasks=tasks))
    assert beside.steps()["tokens"] == (1024 * 5 + 256) * 2048


def test_rows_are_those_that_sequences_fill() -> None:
    """Of 16 trajectories of 48 tokens four a minibatch: 4 rows of 47 places, half a microbatch of 8, each time. Rows of
    24 places hold one sequence of 23, and not a part of another: a row each.
    """
    few = estimated(HALF, {}, 8, 48, batch=16, algorithm=AlgorithmConfig(minibatch_size=4))
    assert (few.packed.rows, few.steps()["microbatches"]) == (4, 4)
    base = estimated(HALF, {}, 8, 24, batch=96)
    learner = dataclasses.replace(base.config.learner, max_tokens_per_row=40)
    wide = dataclasses.replace(base, config=dataclasses.replace(base.config, learner=learner))
    assert (wide.row.length, wide.packed.rows, wide.steps()["microbatches"]) == (24, 96, 6)


def test_batches_are_counted() -> None:
    """Of a place 4 bytes in each of 12 arrays and 1 of the mask; of a trained one 4 more. 1024 rows of 2048, on 8
    devices; of 4 minibatches three wait beside the one that is trained.
    """
    one = 1024 * 2048 * 49 + 1024 * 1024 * 4
    assert estimated(HALF, {"fsdp": 8}, 8, 2048).memory()["batch"] == one / 8
    cut = estimated(HALF, {"fsdp": 8}, 8, 2048, algorithm=AlgorithmConfig(minibatch_size=256))
    assert cut.memory()["batch"] == one / 4 / 8
    assert cut.standing()["other minibatches"] == 3 * one / 4 / 8
    # reference and values at trained places, and returns at all
    scored = AlgorithmConfig(kl=KlConfig(where="loss"), adv_estimator="gae")
    more = 1024 * 2048 * 4 + 2 * 1024 * 1024 * 4
    assert estimated(HALF, {"fsdp": 8}, 8, 2048, algorithm=scored).memory()["batch"] == (one + more) / 8


def test_keys_of_the_step_are_counted() -> None:
    """Moments of 2 + 4 bytes; gradients of 4 + 4, not 4 + 2, that leave no copy, the second of a microbatch; the stream
    between blocks cut in 4 by `tensor`.
    """
    mesh = {"fsdp": 2, "tensor": 4}

    def with_keys(**keys: Any) -> Estimate:
        base = estimated(SEVEN, mesh, 2, 8192)
        config = dataclasses.replace(base.config, learner=dataclasses.replace(base.config.learner, **keys))
        return Estimate(config, SEVEN, config.learner.mesh, "gpu")

    each = 7_615_616_512 / 8
    assert with_keys(optimizer=OptimizerConfig(mu_dtype="bf16")).memory()["moments"] == pytest.approx(
        6 * each, rel=1e-3
    )
    wide = with_keys(reduce_dtype="fp32")
    assert wide.memory()["copies"] == 0
    plain, name = with_keys(), ("reduce-scatter", "gradients")
    assert wide.memory()["gradients"] == pytest.approx(4 * each, rel=1e-3)
    assert wide.memory()["activations"] - plain.memory()["activations"] == pytest.approx(2 * each, rel=1e-3)
    assert moved(wide)[name] == pytest.approx(2 * moved(plain)[name])
    cut = with_keys(sequence_parallel=True)
    # of each of 28 layers, 8192 places of one row in bf16, three quarters; of the layer at work, of the 4 streams 2
    less = 8192 * 3584 * 2 * 3 / 4 * (28 + 2)
    assert plain.memory()["activations"] - cut.memory()["activations"] == pytest.approx(less)
    assert ("reduce-scatter and all-gather", "activations") in moved(cut)


def test_rules_that_do_not_divide_are_named() -> None:
    found = list(estimated(SEVEN, {"tensor": 8}, 8, 8192).dropped())
    assert "heads: 28 is not divided by tensor" in found
    assert "key-value heads: 4 is not divided by tensor" in found
    assert not any(line.startswith("gate") for line in found)
    assert not list(estimated(THIRTY_TWO, {"tensor": 8}, 8, 8192).dropped()), "a family's own parameters have rules too"
