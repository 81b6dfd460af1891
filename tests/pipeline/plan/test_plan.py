"""What a plan says, against numbers from the compiler and from hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from rljax.command_line import main
from rljax.config.load import load_config
from rljax.config.schema import DistillConfig, PlanConfig, SidecarConfig, TeacherConfig
from rljax.config.validate import ConfigError
from rljax.learner.learner import Learner
from rljax.learner.programs import Program
from rljax.learner.teachers import AskedTeacher, StoredTeacher
from rljax.models.common.architecture import Architecture
from rljax.models.hf_names import to_hf
from rljax.pipeline.plan.compiled import abstract_programs, compiled
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.placement import Pool, engine_room, handed_over, place_engines, pools
from rljax.pipeline.plan.plan import nearest_mesh, plan
from rljax.pipeline.plan.targets import GIB, Target, find_target
from tests.learner.made_up import ARCHITECTURE, make_config, make_params
from tests.learner.test_learner_programs import KEYS
from tests.pipeline.plan.shapes import HALF, ONE_AND_A_HALF, SEVEN, THIRTY_TWO, Device, estimated, target_named


def needed(estimate: Estimate, target: Target, peak: float | None = None) -> list[Pool]:
    return pools(estimate, target, place_engines(estimate.config, target), peak)


def test_the_learner_has_what_jax_takes_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three quarters of 79.1 GiB are 59.3: 65 GiB do not fit into them, and do into 0.83 and more."""
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    estimate, target = estimated(ONE_AND_A_HALF, {}, 8, 2048), target_named("h100:8")
    (learner, engine) = needed(estimate, target, 65 * GIB)
    assert learner.limit == pytest.approx(0.75 * 79.1 * GIB)
    assert (learner.fits, learner.advice) == (False, "learner.gpu_memory_utilization=0.83")
    assert engine.fits
    assert needed(estimate, target_named("h100:8", gpu_memory_utilization=0.83), 65 * GIB)[0].fits
    assert needed(estimate, target, 77 * GIB)[0].advice == "", "CUDA needs some of it"
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.9")
    assert target_named("h100:8").share == 0.9
    assert target_named("v5e:2x2").share == 1


def test_vllm_beside_the_learner_leaves_it_a_share() -> None:
    sidecar = SidecarConfig(engine="vllm_async", colocate=True)
    estimate = estimated(ONE_AND_A_HALF, {}, 8, 2048, sidecar=sidecar)
    target = find_target(dataclasses.replace(estimate.config, plan=PlanConfig(target="h100:1")))
    learner, engine = needed(estimate, target, 50 * GIB)
    assert (learner.limit, engine.limit) == pytest.approx((0.5 * 79.1 * GIB, 0.4 * 79.1 * GIB))
    assert (learner.fits, learner.advice, engine.fits) == (False, "", True)
    assert needed(estimate, target, 44 * GIB)[0].advice == "learner.gpu_memory_utilization=0.56"


def test_an_adapter_of_seven_billion_weights_is_trained_on_a_card_of_24_gb() -> None:
    """Whole it would need 85 GiB of masters and moments alone."""
    target, sidecar = target_named("a10:2", gpu_memory_utilization=0.9), SidecarConfig(engine="vllm")
    whole, adapted = (estimated(SEVEN, {}, 1, 2048, share=0.9, rank=rank, sidecar=sidecar) for rank in (None, 32))
    assert not needed(whole, target)[0].fits
    assert all(pool.fits for pool in needed(adapted, target))
    assert needed(adapted, target)[0].needed < 19 * GIB


def test_engines_take_their_gpus_from_the_learner() -> None:
    target, sidecar = target_named("h100:8"), SidecarConfig(engine="vllm_async", num_engines=2)
    two = estimated(ONE_AND_A_HALF, {"fsdp": 6}, 6, 2048, sidecar=sidecar)
    assert place_engines(two.config, target).engines == (("gpu:6",), ("gpu:7",))
    assert all(pool.fits for pool in needed(two, target))
    all_of_them = estimated(ONE_AND_A_HALF, {"fsdp": 8}, 8, 2048, sidecar=sidecar)
    with pytest.raises(ConfigError, match="needs 2 GPUs, and the learner leaves 0 of 8"):
        place_engines(all_of_them.config, target)
    assert (nearest_mesh(all_of_them, target) or "").endswith("): --config.learner.mesh.fsdp=1")
    split = dataclasses.replace(sidecar, tensor_parallel_size=4)
    assert nearest_mesh(estimated(SEVEN, {}, 1, 2048, sidecar=split), target) is None, "the engines need all eight"
    on_ray = dataclasses.replace(two.config, launcher="ray")
    assert place_engines(on_ray, target).engines == (("gpu:6",), ("gpu:7",))
    full = dataclasses.replace(all_of_them.config, launcher="ray")
    assert place_engines(full, target).platform == "cpu", "as on a cluster: GPUs where the learner leaves some"
    full = dataclasses.replace(full, sidecar=dataclasses.replace(sidecar, devices="gpu"))
    with pytest.raises(ConfigError, match="need 2 GPUs, and the learner leaves 0"):
        place_engines(full, target)


def test_what_vllm_has_for_its_cache_is_what_weights_leave() -> None:
    """0.9 of 79.1 GiB, less 15,231,233,024 bytes of weights; a token is 28 layers, 4 heads of 128, twice, in bf16."""
    estimate = estimated(SEVEN, {}, 1, 2048, sidecar=SidecarConfig(engine="vllm"))
    room = engine_room(estimate.config, target_named("h100:8"))
    assert estimate.engine(room) == {"weights": 2 * 7_615_616_512, "KV": 0.9 * 79.1 * GIB - 2 * 7_615_616_512}
    assert estimate.token == 28 * 4 * 128 * 2 * 2
    fixed = estimated(SEVEN, {}, 1, 2048, sidecar=SidecarConfig(engine="vllm", kv_cache_gib=3.0))
    assert fixed.engine(room)["KV"] == 3 * GIB
    large = SidecarConfig(engine="vllm", kv_cache_gib=40.0)
    (_, engine) = needed(estimated(THIRTY_TWO, {"fsdp": 4}, 4, 2048, sidecar=large), target_named("h100:8"))
    assert not engine.fits, "61 GiB of weights and 40 of the cache"


def test_vllm_on_a_cpu_has_its_weights_twice_unless_it_is_told_not_to() -> None:
    sidecar = SidecarConfig(engine="vllm")
    found = estimated(SEVEN, {}, 1, 2048, sidecar=sidecar).engine(on_host=True)
    packed = 2 * 152_064 * 3_584  # of the head, beside the matrix
    assert found["weights"] == found["the next version"] == 2 * 7_615_616_512 + packed
    spared = estimated(SEVEN, {}, 1, 2048, sidecar=dataclasses.replace(sidecar, double_buffer=False))
    assert "the next version" not in spared.engine(on_host=True)


def test_what_vllm_lacks_is_advised_where_it_would_do() -> None:
    """Weights of 72.8 GiB, and 0.6 of a request's cache, are 0.93 of a GPU's 79.1; 134.6 GiB want two GPUs."""
    target = target_named("h100:8")

    def advice(architecture: Architecture, **keys: Any) -> str:
        sidecar = SidecarConfig(**{"engine": "vllm_async"} | keys)
        (_, engine) = needed(estimated(architecture, {"fsdp": 2}, 2, 2048, sidecar=sidecar), target)
        assert not engine.fits
        return engine.advice

    smaller = dataclasses.replace(THIRTY_TWO, num_layers=77)
    assert advice(smaller) == "sidecar.gpu_memory_utilization=0.93"
    larger = dataclasses.replace(THIRTY_TWO, num_layers=145)
    assert advice(larger) == "sidecar.tensor_parallel_size=2"
    assert advice(larger, engine="vllm") == "", "which computes on one GPU"
    assert advice(larger, num_engines=4) == "", "which want more than the learner leaves"


def test_a_run_on_several_machines_is_judged_by_memory_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = {
        name: target_named(name).hosts(64) for name in ("h100:8x8", "v5e:2x4", "v5e:4x4", "v5p:2x2x1", "v5p:2x2x4")
    }
    assert hosts == {"h100:8x8": 8, "v5e:2x4": 1, "v5e:4x4": 4, "v5p:2x2x1": 1, "v5p:2x2x4": 4}
    assert target_named("h100:8x8").hosts(8) == 1
    write_one_and_a_half(tmp_path)
    command = ["--config=configs/gsm8k.py", "--config.mode=plan", f"--config.model.path={tmp_path}"]
    many = ["--config.plan.target=h100:2x8", "--config.learner.mesh.fsdp=12", "--config.learner.rows_per_microbatch=12"]
    main([*command, *many])
    said = "needs    2 processes, one a machine: learner.hosts.number=2"
    assert said in capsys.readouterr().out


def test_the_nearest_mesh_is_the_smallest_that_fits() -> None:
    """1 device needs 18 bytes a parameter and more, 127 GiB; of 59.3 GiB three suffice with the engine elsewhere, but
    do not divide what a matrix has.
    """
    target = target_named("h100:8")
    estimate = estimated(SEVEN, {"data": 2, "sequence": 2}, 8, 2048)
    assert needed(estimated(SEVEN, {}, 8, 2048), target)[0].needed > 127 * GIB
    keys = {"data": 1, "fsdp": 4, "sequence": 1}
    wanted = " ".join(f"--config.learner.mesh.{axis}={size}" for axis, size in keys.items())
    assert (nearest_mesh(estimate, target) or "").endswith(f"): {wanted}"), "what the config cut otherwise is said too"
    whole = nearest_mesh(estimated(SEVEN, {}, 2, 2048), target) or ""
    assert whole.endswith("): --config.learner.mesh.fsdp=4 --config.learner.rows_per_microbatch=4")
    assert nearest_mesh(estimate, dataclasses.replace(target, shape=(1,))) is None
    only = target_named("v5e:1")
    (shared,) = needed(estimated(ONE_AND_A_HALF, {}, 1, 2048), only)
    one = estimated(ONE_AND_A_HALF, {}, 1, 2048)
    two = estimated(ONE_AND_A_HALF, {"fsdp": 2}, 2, 2048, sidecar=SidecarConfig(colocate=True, num_engines=2))
    pair = target_named("h100:2")
    assert handed_over(two, pair, place_engines(two.config, pair)) == 0, "of several devices it is read from files"
    assert shared.needed == sum(one.memory().values()) + sum(one.engine().values()), "it computes with the very arrays"
    wide = estimated(ONE_AND_A_HALF, {}, 1, 2048, sidecar=SidecarConfig(dtype="fp32"))
    version = 2 * one.parameters  # bytes in bf16
    assert needed(wide, only)[0].needed == sum(wide.memory().values()) + sum(wide.engine().values()) + version


def test_a_program_that_the_compiler_refuses_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libtpu and XLA for GPUs do where a program has no room."""
    line = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.36G of 15.75G hbm."

    def refused(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError(f"{line}\n\nTotal hbm usage >= 18.88G")

    monkeypatch.setattr("rljax.pipeline.plan.plan.compiled", refused)
    command = ["--config=configs/quickstart.py", "--config.mode=plan", f"--config.run_dir={tmp_path}"]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "speed    unknown: what 'cpu' computes at its peak has no line in rljax/config/chips.py" in said
    assert f"the compiler refuses it: {line}" in said
    assert "does not fit: the compiler finds no room for it" in said
    target = target_named("h100:8")
    learner, *_ = needed(estimated(ONE_AND_A_HALF, {}, 8, 2048), target, math.inf)
    assert (learner.fits, learner.advice) == (False, "")


def test_the_verdict_comes_before_the_time_which_takes_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.pipeline.plan.plan.compiled", lambda *_: ())
    given = ["learner_tokens_per_second=1e12", "engine_tokens_per_second=1000", "steps=2", "target=h100:2"]
    command = ["--config=configs/quickstart.py", "--config.mode=plan", f"--config.run_dir={tmp_path}"]
    assert main([*command, *(f"--config.plan.{one}" for one in given)]) == 0
    said = capsys.readouterr().out
    assert said.index("\nfits: ") < said.index("\ntime     taken") < said.index("\nrecommended: ")
    assert "plan.learner_tokens_per_second=1e+12 is above it (1,000,000,000,000 in all epochs): unless rows are" in said


def test_a_run_that_is_none_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    config = load_config("quickstart", {"mode": "plan", "plan.from_run": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"^plan.from_run=.*: no run with metrics is here"):
        next(plan(config))


def test_a_plan_compiles_the_programs_of_all_shapes_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 15 places, a half and a quarter, in eights: 16 and 8; trained are all, a half, a quarter, an eighth."""
    asked: list[str] = []
    monkeypatch.setattr(
        "rljax.pipeline.plan.plan.compiled", lambda programs, _: asked.extend(one.name for one in programs) or ()
    )
    run = "tests/e2e/smallest.py"
    assert "  and 7 for batches of other shapes: plan.all_shapes=true compiles them too" in list(plan(load_config(run)))
    assert asked == ["update 2×8×16, 4 trained"]
    asked.clear()
    said = list(plan(load_config(run, {"plan.all_shapes": True})))
    assert sorted(asked) == sorted(
        [f"update 2×8×16, {trained} trained" for trained in (16, 8, 4, 2)]
        + [f"update 1×16×8, {trained} trained" for trained in (8, 4, 2, 1)]
    )
    assert [line for line in said if str(line).startswith("attention")] == [
        "attention of rows of 16: dense",
        "attention of rows of 8: dense",
    ]
    assert not any("other shapes" in str(line) for line in said)


@pytest.mark.parametrize("name", KEYS)
def test_a_plan_compiles_what_the_learner_runs(name: str) -> None:
    config = make_config(algorithm=KEYS[name])
    learner = Learner(config, ARCHITECTURE, make_params())
    planned = abstract_programs(config, ARCHITECTURE, jax.devices())
    real = [program for program in learner.programs(20) if not program.publishes]
    for mine, its in zip(planned, real, strict=True):
        assert (mine.name, mine.likely) == (its.name, its.likely)
        assert jax.tree.map(str, mine.arguments) == jax.tree.map(str, its.arguments)


def test_a_plan_compiles_the_forward_passes_of_teachers() -> None:
    """Of weights that are not there, with the shapes that the learner gives them; one that is served has no pass."""
    far = TeacherConfig(url="http://127.0.0.1:8000/v1", model="far")
    distill = DistillConfig(teachers={"big": TeacherConfig(path="x/y"), "far": far})
    config = make_config(algorithm={"adv_estimator": "none", "distill": distill})
    teacher = dataclasses.replace(ARCHITECTURE, hidden_size=48, num_layers=3)
    tensors = to_hf(make_params(1, teacher), teacher)
    teachers = {"big": StoredTeacher(teacher, tensors), "far": AskedTeacher(far)}
    learner = Learner(config, ARCHITECTURE, make_params(), teachers=teachers)
    planned = abstract_programs(config, ARCHITECTURE, jax.devices(), teachers={"big": teacher})
    real = [program for program in learner.programs(20) if not program.publishes]
    assert {program.kind for program in planned if "teacher" in program.kind} == {"teacher big"}
    for mine, its in zip(planned, real, strict=True):
        assert (mine.name, mine.likely) == (its.name, its.likely)
        assert jax.tree.map(shaped, mine.arguments) == jax.tree.map(shaped, its.arguments)


def shaped(leaf: Any) -> tuple[Any, ...]:
    return (*np.shape(leaf), leaf.dtype, str(getattr(leaf, "sharding", None)))


def test_a_kernel_is_told_of_a_device_that_is_not_here() -> None:
    """Pallas' Triton asks JAX for it while it lowers, and without a GPU finds this alone."""
    asked: list[Any] = []

    class Function:
        def lower(self, *_: Any) -> Any:
            asked.append(jax.sharding.get_abstract_mesh().abstract_device)
            return jax.jit(lambda: 0).lower()

    class Absent(NamedTuple):
        device_kind: str = "a chip"
        platform: str = "gpu"

    for device in (Absent(), jax.devices()[0]):
        argument = SimpleNamespace(sharding=SimpleNamespace(device_set={device}))
        list(compiled([Program("update", Function(), (np.int32(0), argument))], "cpu"))
    assert asked == [jax.sharding.AbstractDevice("a chip", None, "gpu"), None]


def test_the_command_says_what_it_cannot_know_and_exits_by_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_one_and_a_half(tmp_path)
    command = ["--config=configs/gsm8k.py", "--config.mode=plan", f"--config.model.path={tmp_path}"]
    assert main([*command, "--config.plan.target=h100:8"]) == 0
    said = capsys.readouterr().out
    assert "1,543.7 M parameters, bf16" in said
    assert "staleness at most 10, 128 groups of 8 ahead at most" in said
    assert "512 rows of 2048 a step" in said
    assert "unknown  what the compiler makes of it" in said
    assert said.splitlines()[-1].startswith("fits: ")
    assert "of which JAX takes 0.75: 59.3 GiB" in said
    assert "idle     6 of 8 devices: neither learner.mesh nor the engines take them" in said
    assert main([*command, "--config.plan.target=h100:1", "--config.learner.mesh.fsdp=2"]) == 1
    assert "does not fit: learner.mesh multiplies to 2 devices, h100:1 has 1" in capsys.readouterr().out
    assert main([*command, "--config.plan.target=h100:8", "--config.learner.mesh.tensor=8"]) == 1
    said = capsys.readouterr().out
    assert "does not fit: learner.mesh.tensor=8: must divide the model's 12 heads; write 1, 2, 3, 4, 6, 12" in said
    assert "replicated: heads: 12 is not divided by tensor" in said
    assert "programs compiled" not in said, "a run would not start"
    vllm = ["--config.sidecar.engine=vllm_async", "--config.plan.target=h100:8", "--config.sidecar.num_engines=2"]
    assert main([*command, *vllm, "--config.learner.mesh.fsdp=4"]) == 0
    said = capsys.readouterr().out
    assert "2 × vllm_async on gpu:4, gpu:5, 64 requests of up to 2048 tokens" in said
    assert "71.19 GiB of each GPU: sidecar.gpu_memory_utilization=0.9" in said
    assert "over NVLink, 450 GB/s" in said
    assert "idle     2 of 8 devices" in said
    assert main([*command, *vllm, "--config.learner.mesh.fsdp=6", "--config.learner.rows_per_microbatch=6"]) == 0
    assert "idle" not in capsys.readouterr().out
    assert main([*command, *vllm, "--config.learner.mesh.fsdp=8"]) == 1
    assert "needs 2 GPUs, and the learner leaves 0 of 8" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"], "no weights are read or made"


def test_the_body_of_attention_is_chosen_by_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a short row is computed in one piece, but for one that the mesh cuts."""
    monkeypatch.setattr(jax, "devices", lambda *_: [Device("cpu", "cpu", None)] * 2)

    def body(mesh: dict[str, int]) -> str:
        lines = plan(estimated(HALF, mesh, 2, 256, platform="cpu").config)
        return next(line for line in lines if isinstance(line, str) and line.startswith("attention"))

    assert body({"fsdp": 2}) == "attention of rows of 256: dense"
    assert body({"sequence": 2}) == "attention of rows of 256: blockwise"


def write_one_and_a_half(directory: Path) -> None:
    shape = {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}
    more = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768}
    (directory / "config.json").write_text(json.dumps(shape | heads | more | {"rope_theta": 1e6, "hidden_act": "silu"}))


def test_a_hub_out_of_reach_is_asked_once_and_the_mesh_judged_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    keys = ("mode=plan", "model.path=owner/name", "plan.target=h100:2", "learner.mesh.data=4")
    config = Path(__file__).parents[2] / "e2e" / "smallest.py"
    assert main([f"--config={config}", *(f"--config.{key}" for key in keys)]) == 2
    _, mesh, model = capsys.readouterr().err.splitlines()
    assert mesh == "  learner.mesh multiplies to 4 devices, h100:2 has 2"
    assert model.startswith("  model.path=owner/name: its config.json is not here and cannot be fetched (")
    assert [record for record in caplog.records if record.name.startswith("huggingface_hub")] == []


def test_models_that_are_not_there_hide_nothing_that_a_plan_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """And what can only be a path is not looked for on a hub."""
    keys = ("mode=plan", "model.path=./nope", "plan.target=h100:2", "learner.mesh.data=4")
    more = ("judges.small.path=~/none", "reward_models.mine.path=../none", "algorithm.aggregation=none_there:mean")
    config = Path(__file__).parents[2] / "e2e" / "smallest.py"
    assert main([f"--config={config}", *(f"--config.{key}" for key in (*keys, *more))]) == 2
    _, aggregation, *lines = capsys.readouterr().err.splitlines()
    assert aggregation.startswith("  algorithm.aggregation='none_there:mean': cannot be imported")
    cure = "there is no such directory; give a directory, a hub id (owner/name), smollm2-135m or tiny"
    assert lines == [
        "  learner.mesh multiplies to 4 devices, h100:2 has 2",
        f"  model.path=./nope: {cure}",
        f"  judges.small: model.path=~/none: {cure}",
        f"  reward_models.mine: model.path=../none: {cure}",
    ]
