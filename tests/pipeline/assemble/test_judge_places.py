"""Judges that cannot be had, and the settings and devices of those that can."""

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from rljax.config.fields import ConfigError
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    GeneratingConfig,
    JudgeConfig,
    LearnerConfig,
    MeshConfig,
    RowsConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.observe.trace import NullTrace
from rljax.pipeline.assemble import engines
from rljax.pipeline.assemble.devices import engine_gpus
from rljax.pipeline.assemble.engines import Before
from rljax.pipeline.assemble.judges import judge_config, places_of_judges
from rljax.sampler import engine as embedded
from tests.pipeline.assemble.judged import run_config

REFUSED = [
    ({"path": ""}, r"judges.mine.path: missing"),
    ({"template": "rate it"}, r"judges.mine.template: must contain \{response\}"),
    ({"devices": "gpu:x"}, r"judges.mine.devices='gpu:x': write auto"),
    ({"devices": "tpu:1", "engine": "vllm"}, r"judges.mine.devices='tpu:1': an engine in a process of its own"),
    (
        {"devices": "gpu:1", "engine": "vllm", "num_engines": 2},
        r"judges.mine: as those of a policy its engines cannot be: sidecar.devices='gpu:1': names 1 devices",
    ),
    ({"generating_args": GeneratingConfig(max_new_tokens=9)}, r"max_new_tokens=9: above max_response_tokens=1"),
]


@pytest.mark.parametrize(("settings", "line"), REFUSED)
def test_a_judge_that_cannot_be_had_is_refused(settings: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        run_config(tmp_path, **settings)


def test_a_name_too_long_for_the_files_of_its_engines_is_refused(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    assert dataclasses.replace(
        config, judges={"j" * 49: config.judges["mine"]}, tasks=TasksConfig(train={"open": TasksetConfig(source="x")})
    )  # explorer-judge- has 15 letters
    with pytest.raises(ConfigError, match=r"^judges.j+: with explorer.name 'explorer-judge-j+.*: the name of its eng"):
        dataclasses.replace(config, judges={"j" * 50: config.judges["mine"]})


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({}, r"tasks.train.open.reward_args.llm_judge: write judge=NAME, a key of judges, or url"),
        ({"judge": "mine", "url": "http://x"}, "write judge=NAME"),
        ({"judge": "mime"}, r"llm_judge.judge='mime': there is no such judge; did you mean mine\?"),
        ({"judge": "mine", "model": "x"}, r"llm_judge.model: nothing reads it"),
        ({"url": "http://x"}, r"llm_judge.model: missing"),
        ({"url": "http://me:hunter2@x/v1", "model": "m"}, r"llm_judge.url='http://me:\*\*\*@x/v1': has a user or pass"),
    ],
)
def test_a_question_to_no_judge_is_refused(args: dict[str, Any], line: str, tmp_path: Path) -> None:
    config = run_config(tmp_path)
    asked = dataclasses.replace(config.tasks.train["open"], reward_args={"llm_judge": args})
    with pytest.raises(ConfigError, match=line):
        dataclasses.replace(config, tasks=TasksConfig(train={"open": asked}))


POLICYS: list[dict[str, Any]] = [
    {
        "algorithm": AlgorithmConfig(pg_variant="mix", expert_data_ratio=0.5),
        "tasks": TasksConfig(train={"open": TasksetConfig(source="x")}, expert=RowsConfig(source="shown.jsonl")),
    },
    {"algorithm": AlgorithmConfig(overlong="penalty", overlong_buffer=8, overlong_penalty=0.5)},
    {"algorithm": AlgorithmConfig(drop_staler_than=1), "async_generation_ratio": 2.0, "fill_interval": True},
    {"learner": LearnerConfig(mesh=MeshConfig(fsdp=2, tensor=3), rows_per_microbatch=4, sequence_parallel=True)},
    {"sync_method": "nccl"},
]


@pytest.mark.parametrize("policys", POLICYS)
def test_a_judges_engines_have_the_judges_settings_whatever_the_policys_are(policys: dict[str, Any]) -> None:
    config = dataclasses.replace(run_config(Path("tiny"), num_engines=2), seed=7, **policys)
    made = judge_config(config, "mine")
    assert (made.model.path, made.sidecar.num_engines, made.sidecar.max_concurrency) == ("tiny", 2, 4)
    assert (made.context, made.seed, made.wait_timeout) == (17, 7, 120.0)
    assert made.learner.mesh.size == config.learner.mesh.size
    assert made.learner.mesh.tensor == 1, "it divides the learner's heads, not the judge's"


@pytest.mark.parametrize(
    ("taken", "found"), [({0}, 1), ({1}, 0), ({0, 1}, 2), ({0, 1, 2}, 1)]
)  # the last: none is left
def test_an_embedded_judge_takes_a_device_that_is_left(
    taken: set[int], found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    there = [SimpleNamespace(platform="gpu", id=i) for i in range(3)]
    monkeypatch.setattr(engines, "engine_devices", lambda config, present: there)
    monkeypatch.setattr(embedded, "EmbeddedEngine", lambda *_, device, **__: opened.append(device.id))
    config, model = (
        judge_config(run_config(tmp_path), "mine"),
        SimpleNamespace(architecture=None, tokenizer=None, directory=None, frozen=None),
    )
    before = Before(1, frozenset(f"gpu:{i}" for i in taken), frozenset({"gpu:1"}))
    start = engines._in_thread(config, model, NullTrace(), before)  # type: ignore[arg-type]
    asyncio.run(start(0))  # type: ignore[arg-type]
    assert opened == [found]


def test_devices_of_a_judge_are_nobody_elses(tmp_path: Path) -> None:
    config = run_config(tmp_path, devices="gpu:1")
    taken = dataclasses.replace(
        config, learner=LearnerConfig(devices="gpu:0", mesh=MeshConfig()), sidecar=SidecarConfig(devices="gpu:2")
    )
    assert judge_config(taken, "mine").sidecar.devices == "gpu:1"
    with pytest.raises(ConfigError, match=r"judges.mine.devices='gpu:1': overlaps sidecar.devices='gpu:1-2'"):
        dataclasses.replace(taken, sidecar=SidecarConfig(devices="gpu:1-2"))
    every = {"mine": dataclasses.replace(config.judges["mine"], devices="gpu")}
    with pytest.raises(ConfigError, match=r"^judges.mine.devices='gpu': overlaps learner.devices='gpu:0'; give each"):
        dataclasses.replace(taken, judges=every)
    two = {"mine": config.judges["mine"], "other": config.judges["mine"]}
    with pytest.raises(ConfigError, match=r"judges.mine.devices='gpu:1': overlaps judges.other.devices='gpu:1'"):
        dataclasses.replace(config, judges=two)


PLACED: list[tuple[str, dict[str, Any], dict[str, str], list[str]]] = [
    # a process that explores alone; what is named is taken, wherever it stands
    ("explore", {"devices": "gpu:2"}, {"one": "auto", "two": "auto"}, ["0", "1"]),
    ("explore", {"devices": "gpu:0"}, {"one": "auto", "two": "gpu:1"}, ["2", "1"]),
    ("explore", {"devices": "cpu"}, {"one": "auto", "two": "auto"}, ["0", "1"]),
    # the explorer of a process of its own: all that the learner leaves is named, the first is used
    ("explore", {"devices": "gpu:1-3", "learner": "gpu:0"}, {"one": "auto", "two": "auto"}, ["2", "3"]),
    # beside a learner, which has the first
    ("both", {}, {"one": "auto", "two": "auto"}, ["2", "3"]),
    ("both", {"devices": "gpu:2"}, {"one": "auto", "two": "auto"}, ["1", "3"]),
    ("both", {"devices": "cpu"}, {"one": "auto", "two": "gpu:1"}, ["2", "1"]),
    ("both", {"tensor_parallel_size": 2}, {"one": "cpu", "two": "auto"}, ["", "3"]),
]


@pytest.mark.parametrize(("mode", "sidecar", "devices", "found"), PLACED)
def test_judges_have_what_learner_and_engines_leave(
    mode: str,
    sidecar: dict[str, Any],
    devices: dict[str, str],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax, "devices", lambda _=None: [SimpleNamespace(platform="gpu", id=i) for i in range(4)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    judge = JudgeConfig(path="models/small", engine="vllm")
    settings = {"engine": "vllm_async", "devices": "auto", **sidecar}
    learner = LearnerConfig(devices=settings.pop("learner", "auto"))
    config = Config(
        mode=mode,
        learner=learner,
        sidecar=SidecarConfig(**settings),
        judges={name: dataclasses.replace(judge, devices=named) for name, named in devices.items()},
        tasks=TasksConfig(train={"open": TasksetConfig(source="x.jsonl")}),
    )
    monkeypatch.setattr(engines, "local_platform", lambda one: "cpu" if one.sidecar.devices == "cpu" else "gpu")
    places = places_of_judges(config)
    assert [place.before.engines for place in places.values()] == [1, 2]
    assert [
        "".join(engine_gpus(judge_config(config, name), 0, place.before.taken)) if devices[name] != "cpu" else ""
        for name, place in places.items()
    ] == found


def test_a_judge_that_no_gpu_is_left_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(engines, "local_platform", lambda _: "gpu")
    judges = {name: JudgeConfig(path="models/small", engine="vllm") for name in ("one", "two")}
    tasks = TasksConfig(train={"open": TasksetConfig(source="x.jsonl")})
    config = Config(mode="explore", sidecar=SidecarConfig(engine="vllm_async"), judges=judges, tasks=tasks)
    with pytest.raises(ConfigError, match=r"^judges.two: .* the learner and others leave 0 of 2"):
        places_of_judges(config)
