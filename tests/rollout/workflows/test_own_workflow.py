"""A workflow that the config names: found, given its arguments, and held to the contract."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.critique import AnswerCritiqueRevise
from rljax.config.load import load_config
from rljax.config.schema import GeneratingConfig
from rljax.config.validate import ConfigError
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer
from rljax.pipeline.assemble.checks import check_run
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.workflows import chosen_workflow
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.workflow import Attempt, BrokenContract, OwnWorkflow
from rljax.tasks.rewards import RewardRunner, register_reward
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import TaskId, Trajectory
from tests.rollout.workflows.bad_workflows import Judging, Mine
from tests.rollout.workflows.test_multi_turn import Script

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "configs" / "quickstart.py")
MINE = "tests.rollout.workflows.bad_workflows:Mine"


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    save_tiny_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    with RewardRunner(["exact"], timeout=5.0, workers=1) as rewards:
        yield Tools(
            tokenizer=tokenizer,
            rewards=rewards,
            generating=GeneratingConfig(temperature=0.5, top_p=0.9),
            stop_token_ids=(tokenizer.eos_token_id,),
            max_prompt_tokens=40,
            max_response_tokens=20,
            sequence_length=70,
        )


def attempted(workflow: Any, tools: Tools, replies: list[str], pinned: bool = False) -> tuple[Trajectory, Script]:
    pool: Any = Script(tools.tokenizer, replies)
    question = ({"role": "user", "content": "1 + 1"},)
    task = Task(TaskId("sums", 0, 4), question, "2", rewards=(RewardTerm("exact", "exact"),))
    attempt = Attempt(run_seed=3, member=2, retry=1, min_version=3, group=9, pinned=pinned)
    made = asyncio.run(workflow.run(task, attempt, pool))
    return made, pool


def test_two_calls_are_one_trajectory_of_the_tokens_as_they_were_sampled(tools: Tools) -> None:
    flow = AnswerCritiqueRevise(tools, critique="Sure?", answer_tokens=5)
    made, pool = attempted(OwnWorkflow(flow, 70), tools, ["3", "2"])
    said = (
        {"role": r, "content": c} for r, c in zip(("user", "assistant") * 2, ("1 + 1", "3", "Sure?", "2"), strict=True)
    )
    rendered = tools.tokenizer.apply_chat_template(list(said), tokenize=False)
    assert "".join(tools.tokenizer.convert_ids_to_tokens(made.token_ids.tolist())) == rendered
    first, last = made.turns.tolist()
    assert tools.tokenizer.decode(made.token_ids[slice(*first)]) == "3<|end|>"
    assert tools.tokenizer.decode(made.token_ids[slice(*last)]) == "2<|end|>"
    assert np.flatnonzero(made.loss_mask).tolist() == [*range(*first), *range(*last)]
    assert [made.versions[start] for start, _ in (first, last)] == [3, 4], "the script's second reply is of version 4"
    assert (made.reward, made.metrics["revision_gain"], made.metrics["response_tokens"]) == (1.0, 1.0, 4.0)
    assert (made.member, made.retries, made.temperature, made.top_p) == (2, 1, 0.5, 0.9)
    assert [request.sampling.max_new_tokens for request in pool.requests] == [5, 20]
    assert len({request.sampling.seed for request in pool.requests}) == len({r.id for r in pool.requests}) == 2
    assert {(request.min_version, request.priority, request.sampling.temperature) for request in pool.requests} == {
        (3, 9, 0.5)
    }


def test_an_attempt_that_is_pinned_says_so_to_the_engine_and_is_of_one_version(tools: Tools) -> None:
    flow = AnswerCritiqueRevise(tools, critique="Sure?", answer_tokens=5)
    for pinned in (False, True):
        _, pool = attempted(flow, tools, ["3", "2"], pinned)
        assert [(request.min_version, request.pinned) for request in pool.requests] == [(3, pinned)] * 2
    with pytest.raises(BrokenContract, match=r"a token of version 4, and the attempt is pinned to 3"):
        attempted(OwnWorkflow(flow, 70), tools, ["3", "2"], pinned=True)


def test_a_reply_has_the_room_that_its_row_has_left(tools: Tools) -> None:
    flow = AnswerCritiqueRevise(tools, critique="Sure?" * 8)
    _, pool = attempted(flow, tools, ["3", "2"])
    left = 70 - len(pool.requests[1].prompt_ids)
    assert 0 < left < 20
    assert pool.requests[1].sampling.max_new_tokens == left


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        ("type", "Mine.run returned a tuple; return a Trajectory"),
        ("member", "the trajectory of another attempt"),
        ("reward", "the reward nan; return a finite number"),
        ("version", "a token of version 2, and the attempt takes none before 3"),
        ("row", "a row that begins with a trained token"),
        ("logprobs", "the logprob -inf; return a finite number"),
        ("turn_rewards", "the turn_reward nan; return a finite number"),
    ],
)
def test_what_breaks_the_contract_is_named(breaks: str, said: str, tools: Tools) -> None:
    with pytest.raises(BrokenContract, match=said):
        attempted(OwnWorkflow(Mine(tools, breaks=breaks), 70), tools, ["2"])


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        ("nothing", "Judging.judge_group returned a NoneType for a group of 2"),
        ("fewer", "Judging.judge_group returned 1 members for a group of 2; return each member, in their order"),
        ("order", "Judging.judge_group returned the trajectory of another attempt"),
        ("reward", "Judging.judge_group returned the reward inf; return a finite number"),
    ],
)
def test_a_group_that_was_judged_is_held_to_the_contract(breaks: str, said: str, tools: Tools) -> None:
    made, _ = attempted(Mine(tools), tools, ["2"])
    members = [made, dataclasses.replace(made, member=3)]
    task = Task(TaskId("sums", 0, 4), (), "2", rewards=(RewardTerm("ranks", "ranks", of_groups=True),))
    kept = asyncio.run(OwnWorkflow(Judging(), 70).judge_group(task, members))
    assert [(one.member, one.reward) for one in kept] == [(2, 2.0), (3, 2.0)]
    with pytest.raises(BrokenContract, match=said):
        asyncio.run(OwnWorkflow(Judging(breaks), 70).judge_group(task, members))


def test_a_row_that_no_learner_has_room_for_is_named(tools: Tools) -> None:
    with pytest.raises(BrokenContract, match=r"a row of \d+ tokens; model.sequence_length is 4"):
        attempted(OwnWorkflow(Mine(tools), 4), tools, ["2"])


def test_arguments_are_typed_by_the_signature() -> None:
    config = load_config(QUICKSTART, {"rollout.workflow": MINE, "rollout.workflow_args.bound": "7"})
    assert config.rollout.workflow_args == {"breaks": "", "bound": 7}
    made: Any = chosen_workflow(config)
    assert made.keywords == {"breaks": "", "bound": 7}
    with pytest.raises(ConfigError, match=r"rollout.workflow_args.bound=x: expected a whole number|bound=x: expected"):
        load_config(QUICKSTART, {"rollout.workflow": MINE, "rollout.workflow_args.bound": "x"})
    with pytest.raises(ConfigError, match=r"rollout.workflow_args.bond: .*Mine has no such key; closest: bound"):
        load_config(QUICKSTART, {"rollout.workflow": MINE, "rollout.workflow_args.bond": "1"})


def test_a_config_file_may_give_arguments() -> None:
    config = load_config(str(ROOT / "configs" / "critique.py"))
    assert config.rollout.workflow_args["answer_tokens"] == 8


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rollout.workflow": "single"}, r"rollout.workflow='single': .*closest: single_turn"),
        ({"rollout.workflow": "multi_turn"}, r"'multi_turn': does not take the questions of tasks.train"),
        (
            {"rollout.workflow": "single_turn", "rollout.val_env_manager.tags": "FrozenLake"},
            r"'single_turn': does not take the environments of rollout.val_env_manager.tags",
        ),
        ({"rollout.workflow_args.x": "1"}, r"rollout.workflow_args.x: by_task has no such key; it has none"),
    ],
)
def test_a_workflow_that_cannot_work_is_refused_by_the_config(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(QUICKSTART, keys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad_workflows:Sync", "has no async def run"),
        ("bad_workflows:TakesMore", "must take 1 argument, and its keys as keyword-only parameters"),
        ("bad_workflows:Nobody", "cannot be imported"),
    ],
)
def test_a_class_that_is_no_workflow_is_refused_before_anything_starts(name: str, said: str) -> None:
    config = load_config(QUICKSTART, {"rollout.workflow": f"tests.rollout.workflows.{name}"})
    with pytest.raises(ConfigError, match=said):
        check_run(config, Tasksets(config), begins=True)


def test_rewards_of_groups_need_a_workflow_that_judges_them() -> None:
    @register_reward("ranks_of_all")
    def ranks(task: Task, responses: tuple[str, ...]) -> list[float]:
        return [0.0 for _ in responses]

    keys = {"tasks.train.reverse_digits.rewards": ("ranks_of_all",)}
    config = load_config(QUICKSTART, keys)
    check_run(config, Tasksets(config), begins=True)
    config = load_config(QUICKSTART, {**keys, "rollout.workflow": MINE})
    with pytest.raises(ConfigError, match=r"'ranks_of_all': takes whole groups; give .*Mine an async def judge_group"):
        check_run(config, Tasksets(config), begins=True)
