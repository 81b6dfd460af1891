"""Device mappings as pure functions: which engine gets which accelerators of which node."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from rljax.config.modes import PlayConfig
from rljax.config.schema import (
    Config,
    ExplorerConfig,
    JudgeConfig,
    LearnerConfig,
    MeshConfig,
    RayConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.config.validate import ConfigError
from rljax.launch.ray_cluster import check_sync_address
from rljax.launch.ray_placement import Node, Plan, cpus_needed, make_plan, swap_taken
from rljax.pipeline.assemble import engines
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.run_dir import RunDir
from sidecar.hosting.ray import EnginePlacement, RayEngineLauncher, visible_devices, why_it_died

TASKS = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")})
HOME = Node("a", "10.0.0.1", {"CPU": 96.0, "GPU": 8.0})
SECOND = Node("b", "10.0.0.2", {"CPU": 96.0, "GPU": 8.0})
THIRD = Node("c", "10.0.0.3", {"CPU": 96.0, "GPU": 8.0})
BARE = Node("d", "10.0.0.4", {"CPU": 2.0})


def plan(
    *others: Node, home: Node = HOME, platform: str = "gpu", fsdp: int = 1, mode: str = "both", **given: Any
) -> Plan:
    learner = given.pop("learner", "auto")
    ray = given.pop("ray", RayConfig())
    config = Config(
        mode=mode,
        tasks=TASKS,
        ray=ray,
        learner=LearnerConfig(devices=learner, mesh=MeshConfig(fsdp=fsdp)),
        explorer=ExplorerConfig(own_process=given.pop("own_process", False)),
        judges=given.pop("judges", {}),
        play=given.pop("play", PlayConfig()),
        launcher="ray",
        sidecar=SidecarConfig(**{"engine": "vllm_async", **given}),
    )
    return make_plan(config, home, others, platform)


def test_the_device_mapping_of_an_ancestor_on_one_node() -> None:
    """device_mapping is list(range(0,4)) of actor_train and list(range(4,8)) of actor_infer: two engines of two."""
    made = plan(learner="gpu:0-3", fsdp=4, devices="gpu:4-7", num_engines=2, tensor_parallel_size=2)
    assert made.learner == {"GPU": 4.0}
    assert made.learner_devices == (0, 1, 2, 3)
    assert [(e.node, e.devices) for e in made.engines] == [("a", (4, 5)), ("a", (6, 7))]
    bundles, labels = made.bundles()
    here = {"ray.io/node-id": "a"}
    assert bundles == [{"node:10.0.0.1": 0.001, "GPU": 4.0}, {"CPU": 1.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 2.0}]
    assert labels == [here, here, here]
    assert made.asked() == {"GPU": 8.0, "CPU": 2.0}


def test_engines_of_judges_have_bundles_behind_those_of_the_policy() -> None:
    small = JudgeConfig(path="small")
    judges = {"two": dataclasses.replace(small, num_engines=2), "cpu": dataclasses.replace(small, devices="cpu")}
    made = plan(fsdp=4, num_engines=1, tensor_parallel_size=2, judges=judges)
    assert [engine.resources for engine in made.engines] == [
        {"CPU": 1.0, "GPU": 2.0},
        {"CPU": 1.0, "GPU": 1.0},
        {"CPU": 1.0, "GPU": 1.0},
        {"CPU": 1.0},
    ]
    full = plan(fsdp=4, num_engines=2, tensor_parallel_size=2, judges={"last": small})
    assert full.engines[-1].resources == {"CPU": 1.0}, "the others have all GPUs"
    last = plan(fsdp=4, num_engines=3, judges={"two": dataclasses.replace(small, num_engines=2)})
    assert [engine.accelerators for engine in last.engines] == [1, 1, 1, 1, 0], "one GPU is left for two engines"
    assert len(plan(mode="serve", num_engines=1, judges=judges).engines) == 1, "nothing is scored there"
    played = plan(mode="play", play=PlayConfig(tag="FrozenLake"), num_engines=1, judges=judges)
    assert len(played.engines) == 1, "nor there"


def test_the_device_mapping_of_an_ancestor_over_three_nodes() -> None:
    """list(range(0,16)) trains and list(range(16,24)) generates: the engines are on the third node, from 0 there."""
    made = plan(SECOND, THIRD, devices="gpu:16-23", mode="explore", num_engines=8)
    assert [(e.node, e.devices) for e in made.engines] == [("c", (i,)) for i in range(8)]
    assert made.learner == {}


def test_auto_leaves_the_choice_to_ray_and_takes_what_the_learner_leaves() -> None:
    made = plan(fsdp=4, num_engines=4)
    assert made.learner_devices == (0, 1, 2, 3)
    assert {(e.node, e.devices, e.accelerator, e.accelerators) for e in made.engines} == {(None, None, "GPU", 1)}
    alone = plan(home=dataclasses.replace(HOME, resources={"CPU": 8.0, "GPU": 1.0}))
    assert alone.engines[0].resources == {"CPU": 1.0}, "the learner has the only one"
    elsewhere = plan(SECOND, home=BARE, platform="cpu")
    assert elsewhere.engines[0].accelerator == "GPU"


class OneRoom:
    """A placement of which only the places of engines are looked at."""

    group: Any = None

    def __init__(self, made: Plan) -> None:
        self.engine_placements = tuple(
            EnginePlacement(i, 1.0, e.accelerator, e.accelerators) for i, e in enumerate(made.engines, 1)
        )


@pytest.mark.parametrize(
    ("home", "others", "learner", "gpus_here", "head_dim", "expected"),
    [
        (dataclasses.replace(HOME, resources={"CPU": 8.0, "GPU": 1.0}), (), "gpu", True, 64, 0),
        (BARE, (SECOND,), "cpu", False, 24, 1),
    ],
    ids=["one GPU, and the learner has it", "a head without GPUs, nodes with them"],
)
def test_an_engine_is_made_for_the_place_that_it_gets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    home: Node,
    others: tuple[Node, ...],
    learner: str,
    gpus_here: bool,
    head_dim: int,
    expected: int,
) -> None:
    """What this machine has says nothing about where the cluster puts an engine: 24-wide heads need a GPU."""
    monkeypatch.setattr(engines, "local_platform", lambda config: "gpu" if gpus_here else "cpu")
    config = Config(
        launcher="ray", run_dir=str(tmp_path), tasks=TASKS, sidecar=SidecarConfig(engine="vllm_async", devices="auto")
    )
    engine_launcher: Any = RayEngineLauncher(OneRoom(make_plan(config, home, others, learner)))  # type: ignore[arg-type]
    architecture: Any = SimpleNamespace(head_dim=head_dim, num_layers=2, num_kv_heads=2, max_position_embeddings=4096)
    model = Model(tmp_path, architecture, None, ())
    spec = engines.engine_spec(config, RunDir.create(config), model, 0, engine_launcher)
    assert spec.accelerators == expected
    assert spec.arguments["settings"]["accelerator"] is bool(expected)
    assert ("VLLM_CPU_OMP_THREADS_BIND" in spec.environment) is not bool(expected)
    assert "CUDA_VISIBLE_DEVICES" not in spec.environment


def test_weights_are_not_sent_to_other_nodes_from_a_loopback_address() -> None:
    def configured(address: str, method: str = "nccl") -> Config:
        return Config(launcher="ray", tasks=TASKS, sync_method=method, sync_address=address)

    for loopback in ("127.0.0.1", "127.0.1.1", "localhost", "::1"):
        with pytest.raises(
            ConfigError, match=r"sync_address='.*': engines are on 1 other node\(s\), which cannot reach"
        ):
            check_sync_address(configured(loopback), {"b"})
    check_sync_address(configured("127.0.0.1"), set())
    check_sync_address(configured("10.0.0.1"), {"b"})
    check_sync_address(configured("127.0.0.1", "checkpoint"), {"b"})


def test_a_tpu_is_for_engines_of_this_process() -> None:
    """In a process of its own an engine would compute on the CPU, in silence."""
    for given in ({"launcher": "ray"}, {"launcher": "local", "engine": "vllm"}):
        sidecar = SidecarConfig(engine=given.get("engine", "embedded"), devices="tpu:1")
        with pytest.raises(
            ConfigError, match=r"^sidecar\.devices='tpu:1': an engine in a process of its own .* cpu or gpu"
        ):
            Config(launcher=given["launcher"], tasks=TASKS, sidecar=sidecar)
    Config(tasks=TASKS, sidecar=SidecarConfig(devices="tpu:1"), learner=LearnerConfig(devices="tpu:0"))
    chips = Node("e", "10.0.0.5", {"CPU": 8.0, "TPU": 4.0})
    assert plan(home=chips, platform="tpu").engines[0].accelerator == "", "auto leaves a TPU to the learner as well"


def test_cpu_engines_ask_for_no_accelerator_and_custom_resources_are_passed_on() -> None:
    ray = RayConfig(cpus_per_engine=0.5, engine_resources={"fast": 1})
    made = plan(devices="cpu", num_engines=2, ray=ray, own_process=True, platform="cpu")
    assert [e.resources for e in made.engines] == [{"CPU": 0.5, "fast": 1.0}] * 2
    bundles, labels = made.bundles()
    assert bundles[-1] == {"CPU": 1.0}
    assert labels[1:] == [{}, {}, {}]
    config = Config(
        tasks=TASKS, ray=ray, sidecar=SidecarConfig(num_engines=3), explorer=ExplorerConfig(own_process=True)
    )
    assert cpus_needed(config) == 2 * 2 + 1


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"devices": "gpu:4-5", "num_engines": 3, "engine": "embedded"}, "tensor_parallel_size = 3 × 1 need 3"),
        ({"devices": "gpu:14-17", "num_engines": 2}, "the cluster has 16 GPUs, counted from 0"),
        ({"devices": "gpu:7-8", "tensor_parallel_size": 2}, "engine 0 would lie on two nodes"),
    ],
)
def test_devices_that_do_not_fit_are_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)) as info:
        plan(SECOND, mode="explore", **given)
    assert "\n" not in str(info.value)


def test_an_engine_is_never_shown_the_learners_accelerators() -> None:
    """Ray set 2 and 3 aside for a learner that computes on 0 and 1: whoever was given 0 or 1 uses those."""
    swap = swap_taken(["0", "1"], ["2", "3"])
    assert visible_devices(EnginePlacement(1, swap=swap), ["0"], None) == ["2"]
    assert visible_devices(EnginePlacement(1, swap=swap), ["1", "4"], None) == ["3", "4"]
    assert swap_taken(["0", "1"], ["1", "0"]) == {}
    assert swap_taken(["0", "1"], ["1", "5"]) == {"0": "5"}


def test_devices_are_counted_among_those_that_a_node_shows() -> None:
    assert visible_devices(EnginePlacement(1, devices=(2, 3)), ["7", "8"], "4,5,6,7") == ["6", "7"]
    assert visible_devices(EnginePlacement(1, devices=(2, 3)), ["7", "8"], None) == ["2", "3"]


def test_who_has_not_answered_is_not_said_to_be_gone() -> None:
    assert why_it_died(GetTimeoutError("Get timed out: some object(s) not ready.")) == "an actor has not answered yet"
