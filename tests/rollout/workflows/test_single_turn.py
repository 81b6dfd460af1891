import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from rljax.config.schema import GeneratingConfig
from rljax.rollout.workflows.single_turn import SingleTurn, assemble
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.workflow import Attempt, judged_together
from rljax.tasks.rewards import RewardRunner, register_reward
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import TaskId, Trajectory
from sidecar.protocol import Completion, SamplingParams
from tests.tasks.test_templates import tokenizer

STOP = 7


@pytest.fixture
def rewards() -> Iterator[RewardRunner]:
    with RewardRunner([], timeout=5.0, workers=1) as runner:
        yield runner


def member(text: str, prompt: str, reward: float) -> Trajectory:
    vocabulary = tokenizer(None)
    tokens = np.array([*vocabulary.encode(text, add_special_tokens=False), STOP], np.int32)
    flat = np.zeros(len(tokens))
    completion = Completion(tokens, flat.astype(np.float32), flat.astype(np.int32), "stop")
    asked = np.array(vocabulary.encode(prompt, add_special_tokens=False), np.int32)
    return assemble(asked, completion, Attempt(0, 0), SamplingParams(), reward, {"exact": reward})


def test_a_group_is_judged_by_the_texts_of_its_responses_alone(rewards: RewardRunner) -> None:
    seen: list[tuple[str, ...]] = []

    @register_reward("lengths_of_all")
    def lengths(task: Task, responses: tuple[str, ...]) -> list[dict[str, float]]:
        seen.append(responses)
        return [{"letters": len(response)} for response in responses]

    flow = SingleTurn(
        Tools(
            tokenizer=tokenizer(None),
            rewards=rewards,
            generating=GeneratingConfig(),
            stop_token_ids=(STOP,),
            max_prompt_tokens=9,
            max_response_tokens=9,
            sequence_length=18,
        )
    )
    terms = (RewardTerm("exact", "exact"), RewardTerm("lengths_of_all", "lengths", 0.5, of_groups=True))
    task = Task(TaskId("mine", 0, 0), (), "hi", rewards=terms)
    members = [member("hi", "be nice", 1.0), member("nice", "be", 0.0)]
    found = asyncio.run(judged_together(flow, task, members))
    assert seen == [("h i", "n i c e")], "neither the prompt nor the stop token"
    assert [one.reward for one in found] == [2.5, 3.5]
    assert found[1].reward_parts == {"exact": 0.0, "lengths": 7.0, "lengths/letters": 7.0}


def test_a_workflow_that_cannot_judge_groups_says_so() -> None:
    task = Task(TaskId("mine", 0, 0), (), "", rewards=(RewardTerm("ranks", "ranks", of_groups=True),))
    with pytest.raises(TypeError, match="a reward that takes a whole group needs a workflow with judge_group"):
        asyncio.run(judged_together(object(), task, []))
