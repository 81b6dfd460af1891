"""Async rewards are tried before there is anything of a run, as far as they do without judges and reward models."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.config import extras
from rljax.config.fields import ConfigError
from rljax.config.refusals import RefusedConfig
from rljax.config.schema import Config, JudgeConfig, RewardModelConfig, TasksConfig, TasksetConfig
from rljax.pipeline.assemble.checks import check_tasks
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.workflows import make_rewards
from rljax.run import Run
from rljax.tasks.rewards import JudgeUnavailable, RewardError, register_reward, registry
from rljax.tasks.rewards.judge import own_judge
from rljax.tasks.rewards.reward_model import own_reward_model
from rljax.tasks.task import Task

SOURCE = """
import asyncio
print("imported")
loop = None
async def keeps_its_loop(task, response):
    global loop
    loop = loop or asyncio.get_running_loop()
    assert loop is asyncio.get_running_loop(), "a client that it keeps would not work"
    print("called")
    return 1.0
async def fails(task, response):
    print("no column, only", *task.metadata)
    return task.metadata["tests"]
"""


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("early")
    (path / "early.py").write_text(SOURCE)
    (path / "kept.py").write_text(SOURCE)
    sys.path.insert(0, str(path))
    yield
    sys.path.remove(str(path))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def config(*rewards: str, **args: Any) -> Config:
    """Of a run that has a judge and a reward model, whose files are nowhere."""
    taskset = TasksetConfig(source="reverse_digits", rewards=rewards, reward_args=args)
    return Config(
        tasks=TasksConfig(train={"mine": taskset}),
        judges={"small": JudgeConfig(path="nowhere", max_prompt_tokens=16, max_response_tokens=1)},
        reward_models={"helpful": RewardModelConfig(path="nowhere")},
        rollout_batch_size=16,
        group_size=8,
        compile_cache="off",
    )


def tried(config: Config) -> None:
    check_tasks(config, Tasksets(config))


@pytest.mark.parametrize("mode", ["both", "explore"])
def test_of_a_run_whose_async_reward_fails_nothing_is_left(tmp_path: Path, mode: str) -> None:
    run = tmp_path / "runs" / "mine"
    with pytest.raises(
        ConfigError, match=r"'early:fails': fails when it is tried .*KeyError: 'tests'.* no column, only"
    ):
        Run(replace(config("early:fails"), mode=mode, run_dir=str(run)))
    assert not run.parent.exists()


def test_one_that_asks_a_judge_is_known_once_that_is_up() -> None:
    """Whatever it makes of the error, which is none of its own."""

    @register_reward("asks")
    async def asks(task: Task, response: str) -> float:
        return float(await own_judge("small").ask(response, seed=0, temperature=None, max_tokens=None))

    @register_reward("wraps")
    async def wraps(task: Task, response: str) -> float:
        try:
            return await asks(task, response)
        except RewardError as error:
            raise ValueError("no rating") from error

    @register_reward("catches")
    async def catches(task: Task, response: str) -> Any:
        try:
            return await asks(task, response)
        except JudgeUnavailable:
            return "none"

    @register_reward("gathers")
    async def gathers(tasks: Any, responses: Any) -> list[float]:
        async with asyncio.TaskGroup() as group:
            rated = [group.create_task(asks(*one)) for one in zip(tasks, responses, strict=True)]
        return [one.result() for one in rated]

    tried(config("asks", "wraps", "catches", "gathers"))


def test_one_that_asks_a_model_that_the_config_does_not_have_is_refused() -> None:
    @register_reward("judged")
    async def judged(task: Task, response: str, *, name: str) -> float:
        return float(own_judge(name).at_once)

    @register_reward("scored")
    async def scored(task: Task, response: str, *, name: str) -> float:
        return await own_reward_model(name).score(task.messages, response)

    there = {"judged": {"name": "small"}, "scored": {"name": "helpful"}}
    tried(config(*there, **there))
    for reward, line in (
        ("judged", "judges.smal: there is no such model here; there are small"),
        ("scored", "reward_models.smal: there is no such model here; there are helpful"),
    ):
        with pytest.raises(ConfigError, match=rf"'{reward}': fails when it is tried on the first tasks: {line}"):
            tried(config(*there, **there | {reward: {"name": "smal"}}))


def test_what_fails_before_it_asks_is_refused_and_what_another_asks_excuses_nobody() -> None:
    @register_reward("asks")
    async def asks(task: Task, response: str) -> float:
        return float(own_judge("small").at_once)

    @register_reward("careless")
    async def careless(task: Task, response: str) -> float:
        raise KeyError("no such column")
        return await asks(task, response)

    with pytest.raises(ConfigError, match=r"'careless': fails when it is tried .*KeyError: 'no such column'"):
        tried(config("asks", "careless"))


def test_the_rewards_of_the_run_go_on_with_the_event_loop_and_have_what_was_printed(tmp_path: Path) -> None:
    one, log = config("kept:keeps_its_loop"), tmp_path / "logs" / "rewards.log"
    tasksets = Tasksets(one)
    check_tasks(one, tasksets)

    async def explore() -> None:
        with make_rewards(one, log) as rewards:
            await rewards.try_out([("tasks.train.mine", tasksets.training["mine"])])

    asyncio.run(explore())
    assert log.read_text() == "imported\ncalled\n"
    assert "rewards" not in {thread.name for thread in threading.enumerate()}


def test_all_that_a_run_does_not_get_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages, names, sources, trials and devices; a reward that there is not hides no trial of another."""

    @register_reward("fails_one_way")
    def fails_one_way(task: Task, response: str) -> float:
        raise KeyError("one")

    @register_reward("fails_another_way")
    def fails_another_way(task: Task, response: str) -> float:
        raise KeyError("two")

    monkeypatch.setattr(extras, "is_installed", lambda package: package != "wandb")
    key, run = "tasks.train.mine.rewards", tmp_path / "runs" / "mine"
    wrong = config("fails_one_way", "nosuch", "digits", "early:fials", "fails_another_way")
    train = {**wrong.tasks.train, "gone": TasksetConfig(source="gone.jsonl", rewards=("exact",))}
    wrong = replace(
        wrong,
        run_dir=str(run),
        tasks=replace(wrong.tasks, train=train),
        observe=replace(wrong.observe, wandb="here"),
        learner=replace(wrong.learner, devices="cpu:77"),
        algorithm=replace(wrong.algorithm, aggregation="none_there:mean"),
    )
    with pytest.raises(RefusedConfig) as refused:
        Run(wrong)
    lines = [line.strip() for line in str(refused.value).splitlines()]
    begin = [
        "what is refused:",
        "observe.wandb='here': wandb is not installed",
        "algorithm.aggregation='none_there:mean': cannot be imported",
        f"{key}='nosuch': no such reward",
        f"{key}='early:fials': no function 'fials' there",
        "learner.devices='cpu:77': this machine has",
        "tasks.train.gone.source='gone.jsonl': cannot be read",
        f"{key}='fails_one_way': fails when it is tried on the first tasks: KeyError: 'one'",
        f"{key}='fails_another_way': fails when it is tried on the first tasks: KeyError: 'two'",
    ]
    assert all(line.startswith(start) for line, start in zip(lines, begin, strict=True)), lines
    assert not run.parent.exists()
