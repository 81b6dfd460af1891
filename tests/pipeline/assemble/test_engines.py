"""Every engine that a config may name has what starts it."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.fields import ConfigError
from rljax.config.model import LoraConfig, TinyConfig
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    ModelConfig,
    RowsConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.models.frozen import FrozenBase
from rljax.models.tiny import tiny_architecture
from rljax.observe.trace import NullTrace
from rljax.pipeline.assemble import engines
from rljax.pipeline.assemble.engines import ENGINES, Before
from rljax.pipeline.assemble.run import Model
from rljax.sampler import engine as embedded
from sidecar.vllm.settings import VllmSettings

ROOT = Path(__file__).parents[3]


def test_each_choice_has_its_factory() -> None:
    choices = {spec.name: spec.metadata.get("choices") for spec in dataclasses.fields(SidecarConfig)}["engine"]
    assert set(ENGINES) == set(choices)
    for factory, _ in ENGINES.values():
        module, _, name = factory.partition(":")
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()  # read only: vLLM need not be installed
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {node.name for node in ast.parse(source).body if isinstance(node, functions)}, factory


def test_nobody_asks_for_the_name_of_an_engine() -> None:
    """A new kind of engine would be taken for one of those: what holds of each stands in `rljax.config.engines`."""
    asking = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in sorted((ROOT / "rljax").rglob("*.py"))
        if path.parent.name != "importers"  # which read the names that others have
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Constant) and one.value in ENGINES for one in ast.walk(node))
    ]
    assert asking == []


def settings_of(engine: str, family: str = "qwen3", **changes: Any) -> Mapping[str, Any]:
    """What an engine of a run whose trajectories are pinned is started with, on a CPU."""
    tiny = TinyConfig(family=family)
    config = Config(
        async_generation_ratio=2.0,
        model=ModelConfig(tiny=tiny, lora=LoraConfig(rank=4, targets=("q_proj", "down_proj"))),
        sidecar=SidecarConfig(engine=engine, update_policy="pin"),
        tasks=TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("exact",))}),
        **changes,
    )
    model: Any = Model(Path("model"), tiny_architecture(config.model), None, ())
    arguments, _ = ENGINES[engine][1](config, model, False, 1)
    return arguments.get("settings", arguments)


def test_an_engine_has_room_for_the_versions_that_may_be_in_use() -> None:
    assert settings_of("embedded")["held"] == 3
    vllm = settings_of("vllm")
    assert (vllm["held"], vllm["rank"], vllm["adapted"]) == (3, 4, ("down_proj", "q_proj"))
    arguments = VllmSettings(**vllm).arguments(on_cpu=True)
    assert {name: arguments[name] for name in ("max_loras", "max_cpu_loras", "max_lora_rank", "load_format")} == {
        "max_loras": 3,
        "max_cpu_loras": 3,
        "max_lora_rank": 8,
        "load_format": "auto",
    }
    evaluating = settings_of("vllm", mode="evaluate")
    assert (evaluating["held"], evaluating["adapted"]) == (0, ())
    assert "enable_lora" not in VllmSettings(**evaluating).arguments(on_cpu=True)


def test_experts_beside_adapters_are_more_than_vllm_has_for_a_cpu() -> None:
    with pytest.raises(ConfigError, match=r"sidecar.engine=vllm on a CPU holds no adapters of a model with experts"):
        settings_of("vllm", "qwen3_moe")
    assert settings_of("embedded", "qwen3_moe")["held"] == 3


@pytest.mark.parametrize(
    ("engine", "gpu", "others"), [("vllm", True, "embedded or vllm_async"), ("vllm_async", False, "embedded or vllm")]
)
def test_an_engine_that_records_no_routes_there_is_refused(engine: str, gpu: bool, others: str) -> None:
    config = Config(
        model=ModelConfig(tiny=TinyConfig(family="qwen3_moe")),
        sidecar=SidecarConfig(engine=engine),
        algorithm=AlgorithmConfig(router_replay="record"),
        tasks=TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("exact",))}),
    )
    model: Any = Model(Path("model"), tiny_architecture(config.model), None, ())
    place = "GPU" if gpu else "CPU"
    said = (
        rf"^algorithm.router_replay=record: sidecar.engine={engine} records no routes on a {place}; write .*={others},"
    )
    with pytest.raises(ConfigError, match=said):
        ENGINES[engine][1](config, model, gpu, 1)
    arguments, _ = ENGINES[engine][1](config, model, not gpu, 1)
    assert arguments["settings"]["record_routes"]


@pytest.mark.parametrize(
    ("engine", "gpu", "own"),
    [("vllm", False, "0"), ("vllm", True, "0"), ("vllm_async", False, "0"), ("vllm_async", True, "1")],
)
def test_a_lone_worker_of_vllm_has_a_process_where_vllm_needs_one(engine: str, gpu: bool, own: str) -> None:
    taskset = TasksetConfig(source="add_numbers", rewards=("exact",))
    config = Config(sidecar=SidecarConfig(engine=engine), tasks=TasksConfig(train={"sums": taskset}))
    model: Any = Model(Path("model"), tiny_architecture(config.model), None, ())
    _, variables = ENGINES[engine][1](config, model, gpu, 1)
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == own


def records(engine: str, **changes: Any) -> bool:
    """Whether an engine of a run that replays routes records some; on a CPU, where ``vllm_async`` records none."""
    chosen: dict[str, Any] = {
        "model": ModelConfig(tiny=TinyConfig(family="qwen3_moe")),
        "sidecar": SidecarConfig(engine=engine),
        "algorithm": AlgorithmConfig(router_replay="replay"),
        "tasks": TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("exact",))}),
    }
    config = Config(**(chosen | changes))
    model: Any = Model(Path("model"), tiny_architecture(config.model), None, ())
    arguments, _ = ENGINES[engine][1](config, model, False, 1)
    return bool(arguments.get("settings", arguments)["record_routes"])


def test_routes_are_recorded_where_they_are_stored_to_be_trained() -> None:
    assert records("embedded")
    assert records("vllm", mode="explore")
    for mode in ("evaluate", "serve"):
        assert not any(records(engine, mode=mode) for engine in ENGINES), mode
    imitates = AlgorithmConfig(router_replay="replay", pg_variant="sft", expert_data_ratio=1.0)
    shown = RowsConfig(source="shown.jsonl")
    assert not records("embedded", algorithm=imitates, tasks=TasksConfig(expert=shown)), "nothing is sampled"


def test_prefix_caching_is_what_vllm_returns_routes_from() -> None:
    config = Config(
        model=ModelConfig(tiny=TinyConfig(family="qwen3_moe")),
        sidecar=SidecarConfig(engine="vllm_async", enable_prefix_caching=False),
        algorithm=AlgorithmConfig(router_replay="replay"),
        tasks=TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("exact",))}),
    )
    model: Any = Model(Path("model"), tiny_architecture(config.model), None, ())
    with pytest.raises(ConfigError, match=r"^sidecar.enable_prefix_caching=false: .* algorithm.router_replay=replay"):
        ENGINES["vllm_async"][1](config, model, True, 1)
    evaluating = dataclasses.replace(config, mode="evaluate")
    assert not ENGINES["vllm_async"][1](evaluating, model, True, 1)[0]["settings"]["enable_prefix_caching"]
    stepped = dataclasses.replace(config, sidecar=SidecarConfig(engine="vllm", enable_prefix_caching=False))
    assert ENGINES["vllm"][1](stepped, model, False, 1)[0]["settings"]["record_routes"]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "device", "shares"), [("auto", 0, True), ("bf16", 0, False), ("auto", 1, False)])
def test_an_engine_of_the_learners_device_and_dtype_has_its_base(
    dtype: str, device: int, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    there = [SimpleNamespace(platform="cpu", id=0), SimpleNamespace(platform="cpu", id=1)]
    monkeypatch.setattr(engines, "embedded_devices", lambda *_: there[device:])
    monkeypatch.setattr(embedded, "EmbeddedEngine", lambda *_, below, **__: given.append(below.shared))
    config = Config(
        model=ModelConfig(lora=LoraConfig(rank=4)),
        sidecar=SidecarConfig(dtype=dtype),
        tasks=TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("exact",))}),
    )
    base: Any = FrozenBase({}, "", "fp32", there[0])  # type: ignore[arg-type]
    model: Any = Model(Path("model"), tiny_architecture(config.model), None, (), frozen=base)
    asyncio.run(engines._in_thread(config, model, NullTrace(), Before())(0))  # type: ignore[arg-type]
    assert given == [base if shares else None]
