"""Reward models through the program: a run that is rewarded by one, devices, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.schema import (
    Config,
    ExplorerConfig,
    JudgeConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    RewardModelConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.observe.metrics import read_metrics
from rljax.observe.samples import read_samples
from rljax.pipeline.assemble import engines, judges
from rljax.pipeline.assemble.checks import check_devices, check_tasks
from rljax.pipeline.assemble.judges import places_of_judges
from rljax.pipeline.assemble.reward_models import RewardModels, devices_of_reward_models
from rljax.pipeline.assemble.run import validation_fingerprint
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.run import Run
from tests.classifiers import change, last_character_scorer

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.py"
SCORES = {str(digit): float(digit) - 4.5 for digit in range(10)}
"""Of the last character of a response; every other scores 0."""
VALIDATED = "val/reverse_digits/reward_model"
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
KEYS: dict[str, Any] = {
    **{f"model.tiny.{name}": value for name, value in TINY.items()},
    "rollout_batch_size": 8,
    "group_size": 4,
    "max_steps": 2,
    "eval_steps": None,
    "val_batch_size": 4,
    "algorithm.minibatch_size": 8,
    "sidecar.max_concurrency": 16,
    "observe.tensorboard": False,
    "observe.samples_per_step": 8,
    "tasks.train.reverse_digits.rewards": "reward_model",
    "tasks.train.reverse_digits.reward_args.reward_model.model": "mine",
    "tasks.validation.reverse_digits.rewards": "digits,reward_model",
    "tasks.validation.reverse_digits.reward_args.reward_model.model": "mine",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return last_character_scorer(tmp_path_factory.mktemp("scorer") / "model", SCORES)


def quickstart(model: Path, run_dir: Path, **overrides: Any) -> Config:
    return load_config(
        str(QUICKSTART), {**KEYS, "run_dir": str(run_dir), "reward_models.mine.path": str(model), **overrides}
    )


@pytest.mark.slow
def test_a_run_is_rewarded_by_the_score_of_each_response(model: Path, tmp_path: Path) -> None:
    with Run(quickstart(model, tmp_path / "run")) as run:
        rows = list(run)
        audit, measured = run.audit(), run.evaluate()
    assert (audit["balanced"], audit["trained"], audit["dropped"]) == (True, 4, {})
    samples = list(read_samples(tmp_path / "run"))
    assert len(samples) == 16
    found = []
    for sample in samples:
        response = "".join(span["text"] for span in sample["spans"])
        expected = SCORES.get(response.removesuffix("<|end|>")[-1:], 0.0)
        assert sample["reward"] == pytest.approx(expected, rel=1e-4), sample
        found.append(expected)
    assert len(set(found)) > 1
    assert [row["step"] for row in rows] == [1, 2]
    during = [row[VALIDATED] for row in read_metrics(tmp_path / "run") if VALIDATED in row]
    assert during[-1] == measured[VALIDATED]
    logged = [row["reward/reward_model"] for row in read_metrics(tmp_path / "run") if row["step"] > 0]
    assert sum(logged) / 2 == pytest.approx(sum(found) / 16, abs=1e-3)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reward model")]


def test_one_that_is_refused_leaves_no_run_directory(model: Path, tmp_path: Path) -> None:
    two = change(last_character_scorer(tmp_path / "two", SCORES), score__weight=None)
    with pytest.raises(ConfigError, match=rf"^reward_models.mine: {two}: no reward model: it has no score.weight"):
        Run(quickstart(two, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    long = quickstart(model, tmp_path / "run", **{"reward_models.mine.max_tokens": 100_000})
    with pytest.raises(ConfigError, match=r"^reward_models.mine: max_tokens=100000: the model reads at most 4160"):
        check_tasks(long, Tasksets(long))


def test_one_that_is_nowhere_is_refused_by_name(tmp_path: Path) -> None:
    async def opened() -> None:
        with RewardModels(config(mine=RewardModelConfig(path=str(tmp_path / "none")))) as models:
            await models.open({})

    with pytest.raises(FileNotFoundError, match=r"^reward_models.mine: model.path=.*none: there is no such directory"):
        asyncio.run(opened())


def config(args: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **models: Any) -> Config:
    asked = {"reward_model": {"model": "mine"} if args is None else args}
    taskset = TasksetConfig(source="x.jsonl", rewards=("reward_model",), reward_args=asked)
    return Config(reward_models=models, tasks=TasksConfig(train={"open": taskset}), **(settings or {}))


MINE = RewardModelConfig(path="models/scorer")
REFUSED = [
    ({"path": ""}, r"^reward_models.mine.path: missing; write a directory or a hub id$"),
    ({"path": "tiny"}, r"^reward_models.mine.path='tiny': has no head that scores; write a directory or a hub id$"),
    ({"devices": "gpu:x"}, r"^reward_models.mine.devices='gpu:x': write auto"),
    ({"devices": "gpu:0-2"}, r"^reward_models.mine.rows_per_batch=8: must be a multiple of the 3 devices of .*gpu:0-2"),
    ({"max_tokens": 100}, r"^reward_models.mine.max_tokens=100: a trajectory may have 128 tokens, .* would be dropped"),
    ({"rows_per_batch": 0}, r"^reward_models.mine.rows_per_batch=0: must be at least 1$"),
    ({"dtype": "fp16"}, r"^reward_models.mine.dtype='fp16': not one of fp32, bf16; did you mean bf16\?$"),
]


@pytest.mark.parametrize(("settings", "line"), REFUSED)
def test_a_reward_model_that_cannot_be_had_is_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        config(mine=dataclasses.replace(MINE, **settings))


@pytest.mark.parametrize(
    ("args", "models", "line"),
    [
        ({}, {"mine": MINE}, r": missing; write the name of a reward model, a key of reward_models"),
        (
            {"model": "mime"},
            {"mine": MINE},
            r"='mime': there is no such reward model; did you mean mine\?",
        ),
        (
            {"model": "mine"},
            {},
            r"='mine': there is no such reward model; write reward_models.mine.path=MODEL",
        ),
    ],
)
def test_a_reward_that_asks_no_model_is_refused(args: dict[str, Any], models: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=rf"^tasks.train.open.reward_args.reward_model.model{line}"):
        config(args, **models)


def test_on_ray_devices_are_not_named() -> None:
    named = dataclasses.replace(MINE, devices="gpu:1")
    with pytest.raises(ConfigError, match=r"^reward_models.mine.devices='gpu:1': launcher=ray chooses; write auto or"):
        config(mine=named, settings={"launcher": "ray"})


PLACED: list[tuple[dict[str, Any], dict[str, str], dict[str, str]]] = [
    # beside a learner, which has the first, and vLLM, which takes the next
    ({}, {"one": "auto"}, {"one": "2"}),
    ({}, {"one": "auto", "two": "auto"}, {"one": "2", "two": "3"}),
    ({}, {"one": "auto", "two": "gpu:2-3"}, {"one": "0", "two": "2,3"}),
    ({"judges": {"j": JudgeConfig(path="x", engine="vllm")}}, {"one": "auto"}, {"one": "3"}),
    ({"judges": {"j": JudgeConfig(path="x", engine="vllm")}}, {"one": "gpu:2"}, {"one": "2"}),  # it takes another
    ({}, {"one": "gpu:0"}, {"one": "0"}),
    ({"learner": LearnerConfig(mesh=MeshConfig(fsdp=2), rows_per_microbatch=2)}, {"one": "auto"}, {"one": "3"}),
    ({"learner": LearnerConfig(mesh=MeshConfig(fsdp=3), rows_per_microbatch=3)}, {"one": "auto"}, {"one": "0"}),
    # the explorer of a process of its own, which was told the learner's; and one with engines in this process
    (
        {
            "mode": "explore",
            "learner": LearnerConfig(devices="gpu:0"),
            "sidecar": SidecarConfig(engine="vllm", devices="gpu:1-3"),
        },
        {"one": "auto"},
        {"one": "2"},
    ),
    ({"mode": "explore", "sidecar": SidecarConfig(devices="gpu:1")}, {"one": "auto"}, {"one": "0"}),
    ({"mode": "explore", "sidecar": SidecarConfig(num_engines=4)}, {"one": "auto"}, {"one": "0"}),
    # the same before that process is started
    ({"explorer": ExplorerConfig(own_process=True)}, {"one": "auto"}, {"one": "2"}),
    (
        {"explorer": ExplorerConfig(own_process=True), "sidecar": SidecarConfig(num_engines=3)},
        {"one": "auto"},
        {"one": "1"},
    ),
]


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Sequence[Any] = [SimpleNamespace(platform="gpu", id=i) for i in range(4)]
    monkeypatch.setattr(jax, "devices", lambda _=None: there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(engines, "local_platform", lambda _: "gpu")


def placed(settings: dict[str, Any], devices: dict[str, str]) -> dict[str, str]:
    models = {name: dataclasses.replace(MINE, devices=named) for name, named in devices.items()}
    every = {"sidecar": SidecarConfig(engine="vllm"), **settings}
    made = config({"model": "one"}, every, **models)
    found = devices_of_reward_models(made, places_of_judges(made))
    return {name: ",".join(str(device.id) for device in one) for name, one in found.items()}


@pytest.mark.usefixtures("four_gpus")
def test_the_devices_of_judges_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(config: Config, *before: Any) -> frozenset[str]:
        asked.append(config.explorer.name)
        return engines.pool_devices(config, *before)

    monkeypatch.setattr(judges, "pool_devices", counted)
    learner, mine = LearnerConfig(devices="gpu:0"), JudgeConfig(path="tiny", engine="vllm")
    every = {"sidecar": SidecarConfig(engine="vllm"), "learner": learner, "judges": {"mine": mine}}
    check_devices(config({"model": "one"}, every, one=MINE))
    assert asked == ["explorer", "explorer-judge-mine"]


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("settings", "devices", "found"), PLACED)
def test_one_has_what_is_left_or_else_the_learners(
    settings: dict[str, Any], devices: dict[str, str], found: dict[str, str]
) -> None:
    assert placed(settings, devices) == found


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("settings", "devices", "line"),
    [
        ({}, "gpu:1", r"devices='gpu:1': others have gpu:1; write what they leave, or auto"),
        ({}, "gpu:7", r"devices='gpu:7': this machine has 4"),
        ({}, "gpu:0,2", r"devices='gpu:0,2': gpu:0 is shared; of several devices all must be its own"),
        (
            {"explorer": ExplorerConfig(own_process=True)},
            "gpu:0",
            r"devices='gpu:0': others have gpu:0; write what they",
        ),
        ({"mode": "explore", "launcher": "ray"}, "gpu", r"devices='gpu': learner, engines and judges leave none"),
        (
            {"mode": "explore", "sidecar": SidecarConfig(engine="vllm", num_engines=4)},
            "auto",
            r"devices='auto': learner, engines and judges leave none; write cpu",
        ),
    ],
)
def test_devices_that_cannot_be_had_are_refused(settings: dict[str, Any], devices: str, line: str) -> None:
    with pytest.raises(ConfigError, match=rf"^reward_models.one.{line}"):
        placed(settings, {"one": devices})


def test_a_reward_model_is_told_from_another_by_what_it_measures() -> None:
    def measured(**keys: Any) -> str:
        return validation_fingerprint(config(mine=dataclasses.replace(MINE, **keys)))

    same = {measured(), measured(path="/mnt/elsewhere/scorer"), measured(devices="cpu", rows_per_batch=2)}
    assert len(same) == 1
    changes = [{"path": "models/other"}, {"dtype": "bf16"}, {"max_tokens": 512}]
    assert len({measured(**change) for change in changes} | same) == 4


def test_what_a_config_says_of_one_can_be_written_and_read(tmp_path: Path) -> None:
    named = quickstart(Path("models/scorer"), tmp_path / "run", **{"reward_models.mine.rows_per_batch": 2})
    assert named.reward_models["mine"] == RewardModelConfig(path="models/scorer", rows_per_batch=2)
    with pytest.raises(ConfigError, match=r"reward_models.mine.row_per_batch.*rows_per_batch"):
        quickstart(Path("x"), tmp_path, **{"reward_models.mine.row_per_batch": 2})


def test_an_explorers_process_computes_where_it_has_one(tmp_path: Path) -> None:
    from rljax.launch.local import LocalProcess
    from rljax.pipeline.run_dir import RunDir

    own = {"explorer": ExplorerConfig(own_process=True), "sidecar": SidecarConfig(engine="vllm", devices="cpu")}
    with_model = config(mine=MINE, settings=own | {"run_dir": str(tmp_path), "model": ModelConfig()})
    without = dataclasses.replace(
        with_model, reward_models={}, tasks=TasksConfig(train={"open": TasksetConfig(source="x")})
    )
    run = RunDir.create(with_model)
    assert LocalProcess(with_model, run)._environment == {}
    assert LocalProcess(without, run)._environment == {"JAX_PLATFORMS": "cpu"}
