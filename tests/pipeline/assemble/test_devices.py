"""Engines compute where the config says."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jaxlib.xla_client import generate_pjrt_gpu_plugin_options

from rljax import command_line
from rljax.config.load import load_config
from rljax.config.schema import (
    Config,
    ExplorerConfig,
    LearnerConfig,
    MeshConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.config.validate import ConfigError
from rljax.learner.sharding import select_devices
from rljax.pipeline.assemble import devices as assemble
from rljax.pipeline.assemble import engines
from rljax.pipeline.assemble.checks import check_devices
from rljax.pipeline.assemble.devices import (
    check_deltas,
    check_shared,
    engine_devices,
    engine_gpus,
    share_gpu_memory,
    shares_only_accelerator,
)
from rljax.pipeline.assemble.engines import engine_spec
from rljax.pipeline.run_dir import RunDir
from rljax.run import Run
from rljax.tasks import tasksets
from sidecar.hosting.local import LocalEngineLauncher
from tests.pipeline.assemble.laptop import without_gpu
from tests.waiting import HANGS

ROOT = Path(__file__).parents[3]
READERS = ("roll.py", "trinity.py")  # of files that others wrote
SHIPPED = {
    file.name: load_config(str(file)) for file in sorted((ROOT / "configs").glob("*.py")) if file.name not in READERS
}
EMBEDDED = [name for name, shipped in SHIPPED.items() if shipped.sidecar.engine == "embedded"]
ON_FOUR = """
import json
from rljax.config.schema import Config, LearnerConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.pipeline.assemble.devices import engine_devices

def placed(sidecar, learner="auto", mode="both"):
    tasks = TasksConfig(train={"t": TasksetConfig(source="reverse_digits")})
    parts = {"learner": LearnerConfig(devices=learner), "sidecar": SidecarConfig(devices=sidecar)}
    return [device.id for device in engine_devices(Config(mode=mode, tasks=tasks, **parts))]

print(json.dumps([placed("auto"), placed("cpu:1-2"), placed("auto", "cpu:3"), placed("auto", mode="explore")]))
"""


def config(devices: str) -> Config:
    tasks = TasksConfig(train={"t": TasksetConfig(source="reverse_digits")})
    return Config(tasks=tasks, sidecar=SidecarConfig(devices=devices))


def test_engines_take_what_is_named_or_what_the_learner_leaves() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", ON_FOUR],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[1, 2, 3], [1, 2], [0, 1, 2], [0, 1, 2, 3]]


def test_a_device_that_is_not_there_is_refused() -> None:
    assert engine_devices(config("auto")) == jax.devices()[:1]
    assert not shares_only_accelerator(config("auto")), "a CPU is none"
    with pytest.raises(ConfigError, match=r"sidecar\.devices='tpu': this machine has no tpu"):
        engine_devices(config("tpu"))
    with pytest.raises(ConfigError, match=r"sidecar\.devices='cpu:7': this machine has 1"):
        engine_devices(dataclasses.replace(config("cpu:7"), mode="explore"))


class Accelerator:
    """A device of a simulated machine."""

    def __init__(self, platform: str, id: int) -> None:
        self.platform, self.id = platform, id

    def __repr__(self) -> str:
        return f"{self.platform}:{self.id}"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Accelerator]]:
    """Simulates a machine with so many accelerators of a platform."""

    def simulate(count: int, platform: str = "gpu") -> list[Accelerator]:
        made = [Accelerator(platform, i) for i in range(count)]
        monkeypatch.setattr(jax, "devices", lambda _=None: made)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(str(i) for i in range(count)))
        return made

    return simulate


def placed(devices: str = "auto", *, learner: str = "auto", size: int = 1, apart: bool = False, **sidecar: Any) -> Any:
    """The devices of the embedded engines."""
    changes = {
        "learner": LearnerConfig(devices=learner, mesh=MeshConfig(fsdp=size), rows_per_microbatch=8 * size),
        "sidecar": SidecarConfig(devices=devices, **sidecar),
        "explorer": ExplorerConfig(own_process=apart),
    }
    return engine_devices(dataclasses.replace(config("auto"), **changes))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("name", EMBEDDED)
def test_each_embedded_config_shares_the_one_accelerator_and_splits_two(name: str, platform: str, machine: Any) -> None:
    shipped = SHIPPED[name]
    (only,) = machine(1, platform)
    assert engine_devices(shipped) == [only]
    assert shares_only_accelerator(shipped), "its versions need no file"
    check_deltas(shipped)
    with pytest.raises(ConfigError, match=r"sync_deltas=4: .* handed whole versions; leave it out"):
        check_deltas(dataclasses.replace(shipped, sync_method="checkpoint", sync_deltas=4, sync_dtype="bf16"))
    assert not any(
        shares_only_accelerator(dataclasses.replace(shipped, **apart))
        for apart in ({"mode": "train", "sync_method": "checkpoint"}, {"launcher": "ray"})
    )
    assert select_devices(shipped.learner.devices, shipped.learner.mesh.size) == [only]
    for alpha in (0.0, 1.0, 16.0):
        assert engine_devices(dataclasses.replace(shipped, async_generation_ratio=alpha)) == [only]
    first, second = machine(2, platform)
    assert engine_devices(shipped) == [second]
    assert not shares_only_accelerator(shipped)
    assert select_devices(shipped.learner.devices, shipped.learner.mesh.size) == [first]


def test_an_accelerator_that_was_named_or_one_of_several_is_not_shared_unasked(machine: Any) -> None:
    machine(1)
    one = r"the learner has gpu:0; an engine needs an accelerator of its own, or cpu; or write sidecar.colocate=true"
    with pytest.raises(ConfigError, match=rf"sidecar\.devices='gpu:0': {one}"):
        placed("gpu:0")
    with pytest.raises(ConfigError, match=rf"sidecar\.devices='auto': {one}"):
        placed(apart=True)  # two processes cannot, without a share of its memory each
    machine(2)
    with pytest.raises(ConfigError, match=r"sidecar\.devices='auto': the learner has gpu:0, gpu:1; an engine needs"):
        placed(size=2)


def test_engines_that_are_colocated_have_the_learners_devices(machine: Any) -> None:
    first, second, *_ = machine(4)
    assert placed(colocate=True) == [first]
    assert placed(colocate=True, size=2) == [first, second]
    assert placed("gpu:1", colocate=True, size=2) == [second]
    assert placed("gpu:0", learner="gpu:0", colocate=True, apart=True) == [first]
    with pytest.raises(ConfigError, match=r"'gpu:2': with colocate=true engines use what the learner has gpu:0; write"):
        placed("gpu:2", colocate=True)
    with pytest.raises(ConfigError, match=r"'gpu:0-2': with colocate=true"):
        placed("gpu:0-2", colocate=True, size=2)
    machine(1, "tpu")
    assert [device.platform for device in placed(colocate=True)] == ["tpu"]
    with pytest.raises(ConfigError, match=r"processes can share a GPU, .* and JAX has tpu here; leave it out"):
        placed(colocate=True, apart=True)


def test_a_process_of_its_own_shares_a_gpu_and_no_other_device(machine: Any) -> None:
    for mode in ("train", "explore"):
        apart = dataclasses.replace(config("auto"), mode=mode, sidecar=SidecarConfig(colocate=True))
        check_shared(apart, machine(1))
        with pytest.raises(ConfigError, match=r"and JAX has cpu here; leave it out, or install JAX for the GPU"):
            check_shared(apart, machine(1, "cpu"))


def engines_on(devices: str, taken: Sequence[str] = (), **sidecar: Any) -> list[list[str]]:
    asked = dataclasses.replace(config(devices).sidecar, engine="vllm_async", **sidecar)
    whole = dataclasses.replace(config(devices), sidecar=asked)
    return [engine_gpus(whole, index, frozenset(taken)) for index in range(asked.num_engines)]


def test_engines_in_child_processes_see_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert engines_on("auto", num_engines=2) == [["4"], ["5"]]
    assert engines_on("gpu:1-2", num_engines=2) == [["5"], ["6"]]
    assert engines_on("gpu", num_engines=2, tensor_parallel_size=2) == [["4", "5"], ["6", "7"]]
    assert engines_on("auto", ["gpu:2", "cpu:0"], num_engines=2) == [["4"], ["5"]]  # those of a judge
    assert engines_on("gpu", ["gpu:0", "gpu:2"], num_engines=2) == [["5"], ["7"]]
    assert engines_on("gpu:1", ["gpu:1"]) == [["5"]]
    with pytest.raises(ConfigError, match=r"needs 2 GPUs, and the learner and others leave 1 of 4; lower one of them"):
        engines_on("auto", ["gpu:0", "gpu:1", "gpu:3"], num_engines=2)


def test_gpus_that_are_not_there_or_the_learners_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for nothing in ("", "-1", "-1,0"):  # CUDA stops at the first that is none
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        with pytest.raises(ConfigError, match=r"sidecar\.devices='gpu:0': this machine has 0 GPUs"):
            engines_on("gpu:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ConfigError, match=r"sidecar\.devices='gpu:1-2': this machine has 2 GPUs, counted from 0"):
        engines_on("gpu:1-2")

    monkeypatch.setattr(jax, "devices", lambda platform=None: [Accelerator("gpu", 0)])
    assert engines_on("auto") == [["5"]]
    with pytest.raises(ConfigError, match=r"the learner has \[0\]; an engine needs a GPU of its own, or sidecar"):
        engines_on("gpu:0")
    with pytest.raises(ConfigError, match=r"needs 2 GPUs, and the learner leaves 1 of 2; lower one of them, or write"):
        engines_on("auto", num_engines=2)


def test_vllm_beside_the_learner_sees_the_learners_gpus(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(1)
    assert engines_on("auto", colocate=True) == [["0"]]
    assert engines_on("gpu:0", colocate=True) == [["0"]]
    machine(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert engines_on("auto", colocate=True) == [["4"]]
    with pytest.raises(ConfigError, match=r"'gpu:1': with colocate=true engines use what the learner has, \[0\]"):
        engines_on("gpu:1", colocate=True)
    machine(1, "cpu")
    with pytest.raises(ConfigError, match=r"needs 1 GPUs, and the learner has 0 of 1; lower"):
        engines_on("auto", colocate=True)


def asked(mode: str = "both", share: float | None = None, **sidecar: Any) -> Config:
    changed = {"learner": LearnerConfig(gpu_memory_utilization=share), "sidecar": SidecarConfig(**sidecar)}
    return dataclasses.replace(config("auto"), mode=mode, **changed)


@pytest.mark.parametrize(
    ("config", "fraction"),
    [
        (asked(), ""),
        (asked(share=0.85), "0.85"),
        (asked(engine="vllm"), ""),
        (asked(engine="vllm", colocate=True), "0.5"),
        (asked(engine="vllm", colocate=True, share=0.25), "0.25"),
        (asked("train", colocate=True), "0.5"),
        (asked("explore", colocate=True), "0.4"),
        (asked("explore", colocate=True, gpu_memory_utilization=0.3), "0.3"),
        (asked("explore", engine="vllm", colocate=True), ""),
    ],
)
def test_jax_takes_the_share_of_a_gpu_that_the_config_gives_it(
    config: Config, fraction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What jaxlib itself makes of the environment is what its CUDA client is opened with."""
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if fraction:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")  # the user's, which would be refused beside ours
    monkeypatch.setattr(assemble, "backends_are_initialized", lambda: False)
    share_gpu_memory(config)
    options = generate_pjrt_gpu_plugin_options()
    assert options.get("memory_fraction") == (float(fraction) if fraction else None)


def test_a_share_comes_too_late_once_jax_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    jax.devices()
    late = dataclasses.replace(asked(share=0.85), run_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"learner\.gpu_memory_utilization=0\.85: JAX has started in this process"):
        Run(late)
    assert not (tmp_path / "run").exists()
    assert command_line.run(lambda: late) == command_line.REFUSED
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.85")
    share_gpu_memory(late)


@pytest.mark.parametrize(("colocate", "share"), [(True, 0.4), (False, 0.9)])
def test_vllm_is_given_its_share(colocate: bool, share: float, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(1)
    monkeypatch.setattr(jax, "devices", lambda _=None: [Accelerator("gpu" if colocate else "cpu", 0)])
    beside = asked(engine="vllm", colocate=colocate, devices="gpu")
    model: Any = SimpleNamespace(directory=Path("model"), architecture=SimpleNamespace(max_position_embeddings=256))
    spec = engine_spec(beside, RunDir(Path("run")), model, 0, LocalEngineLauncher())
    assert spec.environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert spec.arguments["settings"]["gpu_memory_utilization"] == share
    on_cpu = dataclasses.replace(beside, sidecar=dataclasses.replace(beside.sidecar, devices="auto"))
    monkeypatch.setattr(engines, "local_platform", lambda _: "cpu")
    if colocate:
        with pytest.raises(ConfigError, match=r"sidecar\.colocate=true: this machine has no GPU that could be shared"):
            engine_spec(on_cpu, RunDir(Path("run")), model, 0, LocalEngineLauncher())


def test_all_devices_that_are_not_there_are_told_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file of ROLL's, on a laptop."""
    without_gpu(monkeypatch)
    file = str(ROOT / "tests" / "data" / "seeds" / "agent_val_frozen_lake_async.yaml")
    with pytest.raises(ConfigError) as refused:
        check_devices(load_config(file))
    assert [str(error) for error in (refused.value, *refused.value.others)] == [
        "learner.devices='gpu:0-3': this machine has no gpu (none), learner.mesh multiplies to 4; write cpu, and a "
        "mesh of as many",
        "sidecar.devices='gpu:4-7': this machine has 0 GPUs, counted from 0; correct it, or write cpu",
    ]
    check_devices(load_config(file, {"learner.devices": "cpu"}))


def test_devices_that_are_not_there_are_told_of_before_a_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a pair of Trinity's, whose tasks are of a hub."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(tasksets, "hub_rows", lambda *_: pytest.fail("the hub was asked"))
    seeds = ROOT / "tests" / "data" / "seeds"
    config = load_config(f"{seeds / 'explorer.yaml'},{seeds / 'trainer.yaml'}", {"run_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=r"sidecar\.devices='gpu:4-7': this machine has 0 GPUs"):
        Run(config)
    assert not (tmp_path / "run").exists()
