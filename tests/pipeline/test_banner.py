"""What a process says when it starts, and that it is kept; warnings of accelerators that JAX does not see."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rljax.config.schema import (
    Config,
    DistillConfig,
    ExplorerConfig,
    LearnerConfig,
    LoraConfig,
    MeshConfig,
    ModelConfig,
    ObserveConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TeacherConfig,
)
from rljax.learner.sharding import AXES
from rljax.models.common.architecture import Experts
from rljax.models.tiny import tiny_architecture
from rljax.pipeline import banner as banners
from rljax.pipeline.banner import (
    banner,
    explorer_banner,
    unseen_accelerator,
    warn_of_unread,
    warn_of_unseen_accelerator,
)
from rljax.pipeline.observers import LearnerObservers
from sidecar.extras import install_command

CONFIG = Config(
    async_generation_ratio=2.0,
    sync_interval=2,
    rollout_batch_size=64,
    group_size=8,
    model=ModelConfig(path="tiny", dtype="bf16"),
    sidecar=SidecarConfig(max_concurrency=7),
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")}),
)
ROOT = Path("runs/first")


class Gpu:
    """A GPU of a simulated machine, of which JAX was given 40 GiB."""

    platform, device_kind = "gpu", "NVIDIA H100"

    def __init__(self, id: int) -> None:
        self.id = id

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 40 * 2**30}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: Any
    opt_state: Any
    step: int


def learner() -> Any:
    """A learner that keeps two arrays of 3 MiB and a count."""
    mesh = Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(AXES)), AXES)
    weights, moments = (jax.device_put(np.zeros((3, 2**18), np.float32), NamedSharding(mesh, P())) for _ in range(2))
    of_mesh = SimpleNamespace(devices=mesh.devices, shape=mesh.shape)
    state, architecture = State({"a": weights}, {"m": moments}, 3), tiny_architecture(CONFIG.model)
    return SimpleNamespace(mesh=of_mesh, state=state, base=None, architecture=architecture)


def test_a_machine_without_accelerators() -> None:
    total = psutil.virtual_memory().total / 2**30
    assert banner(CONFIG, ROOT, learner()) == [
        "run      runs/first · mode=both · launcher=local",
        "learner  1 × cpu (cpu:0) · mesh of one device · bf16 · 786.4k parameters (tiny)",
        f"memory   the learner keeps 6.0 MiB a device, of {total:.1f} GiB of the machine",
        "engines  1 × embedded on cpu:0, shared with the learner · bf16 · 7 requests at once each · weights by "
        "memory, and as files for other explorers (sync_method=memory writes none)",
        "batches  64 trajectories in 8 groups · α=2 · S=3: no trained token is staler, in steps",
    ]


def simulate(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Gpu]:
    gpus = [Gpu(i) for i in range(count)]
    monkeypatch.setattr(jax, "devices", lambda _=None: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(str(i) for i in range(count)))
    return gpus


def test_an_adapter_is_told_with_what_it_is_on() -> None:
    """3 MiB of the base beside the 6 of masters and moments."""
    adapted = learner()
    adapted.base = {"b": np.asarray(adapted.state.params["a"]).astype(np.float32)}
    adapted.base = jax.device_put(adapted.base, jax.devices()[0])
    lora = LoraConfig(rank=64, alpha=16, targets=("q_proj", "v_proj"), rslora=True)
    pinned = dataclasses.replace(CONFIG.sidecar, update_policy="pin")
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, lora=lora), sidecar=pinned)
    lines = banner(config, ROOT, adapted)
    assert lines[1].endswith(
        "786.4k parameters of adapters on 786.4k frozen ones (tiny) · LoRA of rank 64, alpha 16, rslora, q_proj,v_proj"
    )
    assert "the learner keeps 9.0 MiB a device" in lines[2]
    assert lines[3].endswith("weights by checkpoint · update_policy=pin: 4 versions at once"), "S = ⌈2⌉ + 2 - 1 = 3"
    assert explorer_banner(config, ROOT)[1].endswith("update_policy=pin: 4 versions at once")
    kept = dataclasses.replace(config, sidecar=dataclasses.replace(CONFIG.sidecar, update_policy="keep_kv"))
    assert explorer_banner(kept, ROOT)[1].endswith("update_policy=keep_kv")


@pytest.mark.parametrize(("replay", "told"), [("off", ""), ("record", ", router_replay=record")])
def test_experts_are_told_with_what_becomes_of_their_routes(replay: str, told: str) -> None:
    ours = learner()
    ours.architecture = dataclasses.replace(ours.architecture, experts=Experts(8, 2, 64))
    config = dataclasses.replace(CONFIG, algorithm=dataclasses.replace(CONFIG.algorithm, router_replay=replay))
    assert banner(config, ROOT, ours)[1].endswith(f"786.4k parameters (tiny) · 8 experts, 2 a token{told}")


def test_teachers_are_told_with_where_they_are() -> None:
    teachers = {
        "big": TeacherConfig(path="models/big"),
        "served": TeacherConfig(url="http://there:8000/v1", model="large"),
    }
    algorithm = dataclasses.replace(CONFIG.algorithm, distill=DistillConfig(teachers=teachers))
    lines = banner(dataclasses.replace(CONFIG, algorithm=algorithm), ROOT, learner())
    assert lines[2] == "teachers big: models/big · served: http://there:8000/v1"


def test_gpus_that_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = learner()
    gpus = simulate(monkeypatch, 8)
    asked = dataclasses.replace(
        CONFIG,
        learner=LearnerConfig(mesh=MeshConfig(fsdp=2, tensor=2), gpu_memory_utilization=0.8),
        sidecar=dataclasses.replace(CONFIG.sidecar, num_engines=3, dtype="fp32"),
        sync_method="memory",
    )
    ours.mesh = SimpleNamespace(devices=np.array(gpus[:4]), shape={**dict.fromkeys(AXES, 1), "fsdp": 2, "tensor": 2})
    said = banner(asked, ROOT, ours)
    assert said[1:4] == [
        "learner  4 × NVIDIA H100 (gpu:0-3) · mesh fsdp 2 × tensor 2 · bf16 · 786.4k parameters (tiny)",
        "memory   the learner keeps 6.0 MiB a device, of 40.0 GiB for JAX · 0.8 of each GPU",
        "engines  3 × embedded on gpu:4-6 · fp32 · 7 requests at once each · weights by memory in bf16",
    ]


def test_vllm_beside_the_learner_on_one_gpu_says_who_has_what(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = learner()
    ours.mesh.devices = np.array(simulate(monkeypatch, 1))
    asked = dataclasses.replace(
        CONFIG, sidecar=dataclasses.replace(CONFIG.sidecar, engine="vllm", devices="gpu", colocate=True)
    )
    said = banner(asked, ROOT, ours)
    assert said[2].endswith("of 40.0 GiB for JAX · of each GPU 0.5 for the learner, 0.4 for an engine")
    assert said[3].startswith("engines  1 × vllm on GPU 0, shared with the learner · ")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"mode": "train"}, "those of explorers that join · weights by checkpoint"),
        (
            {"mode": "train", "sync_deltas": 16},
            "those of explorers that join · weights by checkpoint, up to 16 in a row as what has changed",
        ),
        ({"launcher": "ray"}, "1 × embedded on the Ray cluster · "),
        (
            {"explorer": ExplorerConfig(own_process=True)},
            "1 × embedded on cpu:0 in another process, shared with the",
        ),
        ({"sidecar": SidecarConfig(engine="vllm", devices="cpu", num_engines=2)}, "2 × vllm on cpu · "),
    ],
)
def test_engines_are_where_the_config_puts_them(changes: dict[str, Any], place: str) -> None:
    assert banner(dataclasses.replace(CONFIG, **changes), ROOT, learner())[3].startswith(f"engines  {place}")


def test_an_explorer_says_what_it_is() -> None:
    assert explorer_banner(dataclasses.replace(CONFIG, mode="explore"), ROOT) == [
        "run      runs/first · explorer",
        "engines  1 × embedded on cpu:0 · bf16 · 7 requests at once each · weights by checkpoint",
    ]


def test_each_start_of_a_learner_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(CONFIG, observe=ObserveConfig(progress="lines", tensorboard=False, trace=False))
    model: Any = SimpleNamespace(tokenizer=None)
    for life in ("first", "second"):
        with LearnerObservers(config, tmp_path, model, dict) as observers:
            observers.start([f"run {life}", "learner"])
    kept = (tmp_path / "logs" / "learner.log").read_text().splitlines()
    assert [line for line in kept if not line.startswith("20")] == ["run first", "learner", "run second", "learner"]
    assert len(kept) == 6
    assert "run first\nlearner\n" in capsys.readouterr().out


def on(devices: str, engines: str = "auto") -> Config:
    return dataclasses.replace(CONFIG, learner=LearnerConfig(devices=devices), sidecar=SidecarConfig(devices=engines))


@pytest.mark.parametrize(
    ("attached", "words"), [("gpu", "an NVIDIA GPU that JAX does not see"), ("tpu", "a TPU that JAX does not see")]
)
def test_an_accelerator_that_jax_does_not_see_is_named_with_its_extra(attached: str, words: str) -> None:
    said = unseen_accelerator(CONFIG, "cpu", [attached], None)
    assert said is not None
    extra = {"gpu": "cuda12", "tpu": "tpu"}[attached]
    assert said.startswith(f"this machine has {words}, and JAX computes on the CPU: {install_command(extra)}")
    assert unseen_accelerator(on("cpu"), "cpu", [attached], None) == said, "auto of the engines would take it"
    assert unseen_accelerator(on("cpu", "cpu"), "cpu", [attached], None) is None
    assert unseen_accelerator(CONFIG, attached, [attached], None) is None
    assert unseen_accelerator(CONFIG, "cpu", [], None) is None
    assert unseen_accelerator(CONFIG, "cpu", [attached], "cpu") is None


def test_the_warning_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(banners, "attached_accelerators", lambda: ["gpu"])
    before = jax.config.values["jax_platforms"]
    try:
        for chosen in (None, "cpu"):
            jax.config.update("jax_platforms", chosen)
            warn_of_unseen_accelerator(CONFIG)
    finally:
        jax.config.update("jax_platforms", before)
    (said,) = caplog.messages
    assert f"{install_command('cuda12')} (cuda13 with a driver" in said


SHARED = dataclasses.replace(
    CONFIG,
    learner=LearnerConfig(gpu_memory_utilization=0.5, autotune=False),
    sidecar=SidecarConfig(gpu_memory_utilization=0.25, colocate=True),
)
OF_GPUS = "learner.gpu_memory_utilization=0.5, learner.autotune=False, sidecar.gpu_memory_utilization=0.25"


@pytest.mark.parametrize(
    ("config", "platform", "said"),
    [
        (SHARED, "cpu", [f"{OF_GPUS}, sidecar.colocate=True: of no effect, for the learner computes on a CPU"]),
        (SHARED, "tpu", [f"{OF_GPUS}: of no effect, for the learner computes on a TPU"]),
        (SHARED, "gpu", []),
        (CONFIG, "cpu", []),
    ],
)
def test_keys_of_accelerators_that_nothing_reads_are_named(
    config: Config, platform: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_unread(config, platform)
    assert caplog.messages == said


def test_the_extras_are_there() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for _, extra, _ in banners.EXTRAS.values():
        assert f"\n{extra} = [" in text
