"""Episodes, token by token, with a model that says what the test wrote down."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from rljax.config.environments import EnvironmentConfig
from rljax.config.schema import GeneratingConfig
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer
from rljax.rollout.environments.hosts import LoopHost
from rljax.rollout.workflows.multi_turn import MultiTurn, parse_action
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.rewards import RewardRunner
from rljax.tasks.task import BadRow, Task
from rljax.trajectory import TaskId, Trajectory
from sidecar.protocol import Completion, GenerateRequest
from tests.rollout.environments.bad import Bad

COUNTER = "tests.rollout.environments.bad:Bad-v0"


class Script:
    """In place of an engine pool: each reply is the next text; one that ends with ``|`` is cut short there."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, replies: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._replies = list(replies)
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest, lineage: int, *, validation: bool = False) -> Completion:
        turn = len(self.requests)
        self.requests.append(request)
        text = self._replies[turn]
        ids = self._tokenizer(text.removesuffix("|"), add_special_tokens=False)["input_ids"]
        ids = (ids if text.endswith("|") else [*ids, self._tokenizer.eos_token_id])[: request.sampling.max_new_tokens]
        count = len(ids)
        return Completion(
            np.array(ids, np.int32),
            -np.arange(1, count + 1, dtype=np.float32) - turn,
            np.full(count, 3 + turn, np.int32),
            "length" if text.endswith("|") else "stop",
        )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(directory)
    return load_tokenizer(directory)


def play(
    tokenizer: PreTrainedTokenizerFast, replies: Sequence[str], *, sequence_length: int = 400, **keys: Any
) -> tuple[Trajectory, Script, str]:
    """Plays the environment that counts to three; returns its trajectory, the requests, and its text."""
    config = EnvironmentConfig(
        **{
            "id": COUNTER,
            "place": "loop",
            "first_template": "Go!\n",
            "template": "{turn_idx}: {observation} ({actions_left} left){x}",
            "format_penalty": 0.25,
            **keys,
        }
    )
    flow = MultiTurn(
        Tools(
            tokenizer=tokenizer,
            rewards=RewardRunner([], timeout=1.0, workers=1),
            generating=GeneratingConfig(),
            stop_token_ids=[tokenizer.eos_token_id],
            max_prompt_tokens=sequence_length,
            max_response_tokens=40,
            sequence_length=sequence_length,
            hosts={"loop": LoopHost()},
            environments={"counter": config},
        )
    )
    pool: Any = Script(tokenizer, replies)
    task = Task(TaskId("counter", 0, 0), (), "", seed=1, environment=True)
    trajectory = asyncio.run(flow.run(task, Attempt(run_seed=0, member=2, min_version=3, group=5), pool))
    text = "".join(tokenizer.convert_ids_to_tokens(trajectory.token_ids.tolist()))
    return trajectory, pool, text


GO = "<answer>go</answer>"


def test_a_dialogue_is_what_the_template_renders(tokenizer: PreTrainedTokenizerFast) -> None:
    trajectory, pool, text = play(tokenizer, [GO, GO, GO], system_prompt="count")
    said = ["Go!\n1: 0 (10 left){x}", GO, "2: 1 (9 left){x}", GO, "3: 2 (8 left){x}", GO]
    messages = [{"role": "system", "content": "count"}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(said)]
    assert text == tokenizer.apply_chat_template(messages, tokenize=False)

    assert trajectory.finish_reason == "done"
    assert trajectory.reward == 3.0
    assert trajectory.turn_rewards.tolist() == [1.0, 1.0, 1.0]
    assert trajectory.turn_states == ("0", "1", "2")
    counted = {"success": 1.0, "turns": 3.0, "invalid_actions": 0.0, "cut_turns": 0.0, "response_tokens": 60.0}
    assert trajectory.metrics == counted
    assert trajectory.reward_parts == {"environment": 3.0, "format": 0.0}
    assert trajectory.member == 2
    for turn, (start, end) in enumerate(trajectory.turns.tolist()):
        assert tokenizer.decode(trajectory.token_ids[start:end]) == GO + "<|end|>"
        assert set(trajectory.versions[start:end].tolist()) == {3 + turn}
        np.testing.assert_array_equal(trajectory.logprobs[start:end], -np.arange(1, 21) - turn)
        np.testing.assert_array_equal(pool.requests[turn].prompt_ids, trajectory.token_ids[:start])
    outside = np.ones(len(trajectory.token_ids), np.bool_)
    for start, end in trajectory.turns.tolist():
        outside[start:end] = False
    np.testing.assert_array_equal(trajectory.loss_mask, ~outside)
    assert {(r.min_version, r.priority) for r in pool.requests} == {(3, 5)}
    assert len({r.sampling.seed for r in pool.requests}) == len({r.id for r in pool.requests}) == 3


def test_a_turn_cut_short_gets_its_end_masked(tokenizer: PreTrainedTokenizerFast) -> None:
    trajectory, _, text = play(tokenizer, ["<answer>go</answer>|", GO, GO])
    assert text.count("</answer><|end|><|user|>") == 2
    end = trajectory.turns[0, 1]
    assert tokenizer.convert_ids_to_tokens(int(trajectory.token_ids[end])) == "<|end|>"
    assert not trajectory.loss_mask[end]


def test_invalid_actions_cost_and_the_episode_goes_on(tokenizer: PreTrainedTokenizerFast) -> None:
    trajectory, _, _ = play(tokenizer, ["hm", "<answer>dance</answer>", GO])
    # the counter counts every step, and only "go" is valid there
    assert trajectory.turn_rewards.tolist() == [0.75, 0.75, 1.0]
    assert trajectory.reward_parts == {"environment": 3.0, "format": -0.5}
    assert trajectory.metrics["invalid_actions"] == 2.0


def test_a_reply_without_an_action_is_invalid_whatever_the_environment_says(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bad, "says_valid", False)
    trajectory, _, _ = play(tokenizer, ["hm", "<answer> </answer>", "<answer>dance</answer>"])
    assert trajectory.turn_rewards.tolist() == [0.75, 0.75, 1.0]
    assert trajectory.metrics["invalid_actions"] == 2.0


def test_actions_left_are_never_more_than_turns_left(tokenizer: PreTrainedTokenizerFast) -> None:
    _, _, text = play(tokenizer, ["hm", "hm", GO], max_actions=3)
    assert [f"({n} left)" in text for n in (3, 2, 1)] == [True] * 3
    _, _, text = play(tokenizer, [GO, GO], max_actions=9, max_turns=2)
    assert "(2 left)" in text
    assert "(1 left)" in text


def test_a_reply_that_its_budget_cut_is_counted_and_names_the_end_that_it_brings(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    trajectory, _, _ = play(tokenizer, ["hm" * 30 + "|", GO, GO], max_tokens_per_turn=25)
    assert (trajectory.metrics["cut_turns"], trajectory.finish_reason) == (1.0, "done")
    trajectory, _, _ = play(tokenizer, [GO, "hm" * 30 + "|"], max_tokens_per_turn=25, max_turns=2)
    assert (trajectory.metrics["cut_turns"], trajectory.finish_reason) == (1.0, "max_tokens_per_turn")
    assert trajectory.cut_off
    trajectory, _, _ = play(tokenizer, ["hm" * 30 + "|", GO], max_tokens_per_turn=25, max_turns=2)
    assert (trajectory.metrics["cut_turns"], trajectory.finish_reason) == (1.0, "max_turns")
    trajectory, _, _ = play(tokenizer, [GO, "hm" * 30 + "|"], sequence_length=70)
    assert (trajectory.metrics["cut_turns"], trajectory.finish_reason) == (0.0, "sequence_length")


@pytest.mark.parametrize(
    ("keys", "replies", "reason", "turns"),
    [
        ({"max_actions": 2}, [GO, GO], "max_actions", 2),
        ({"max_actions": 2, "max_turns": 2}, ["hm", GO], "max_turns", 2),
        ({"max_actions": 9, "max_turns": 1}, [GO], "max_turns", 1),
        ({"sequence_length": 70}, [GO, GO], "sequence_length", 2),
    ],
)
def test_limits_are_reasons_of_their_own(
    tokenizer: PreTrainedTokenizerFast, keys: dict[str, Any], replies: list[str], reason: str, turns: int
) -> None:
    trajectory, _, _ = play(tokenizer, replies, **keys)
    assert trajectory.finish_reason == reason
    assert len(trajectory.turns) == turns
    assert len(trajectory.token_ids) <= keys.get("sequence_length", 400)


def test_a_turn_has_the_least_of_its_budgets(tokenizer: PreTrainedTokenizerFast) -> None:
    _, pool, _ = play(tokenizer, [GO, GO, GO], max_tokens_per_turn=25)
    assert [r.sampling.max_new_tokens for r in pool.requests] == [25, 25, 25]
    _, pool, _ = play(tokenizer, [GO, GO], sequence_length=70)
    last = pool.requests[-1]
    assert last.sampling.max_new_tokens == 70 - len(last.prompt_ids) < 40


def test_a_row_for_each_turn_shows_the_turns_before(tokenizer: PreTrainedTokenizerFast) -> None:
    trajectory, pool, _ = play(
        tokenizer,
        [GO, GO, GO],
        history_length=1,
        template="{history_length} of {turn_idx}: {history} now {observation}",
    )
    spans = trajectory.row_spans
    assert len(spans) == 3
    rows = ["".join(tokenizer.convert_ids_to_tokens(trajectory.token_ids[a:b].tolist())) for a, b in spans]
    reply = f"<|end|><|assistant|>{GO}<|end|>"
    assert rows == [
        f"<|user|>Go!\n0 of 1:  now 0{reply}",
        f"<|user|>Go!\n1 of 2: [Observation 1: '0', Action 1: '{GO}'] now 1{reply}",
        f"<|user|>Go!\n1 of 3: [Observation 2: '1', Action 2: '{GO}'] now 2{reply}",
    ]
    for (start, end), (begin, _), request in zip(spans, trajectory.turns.tolist(), pool.requests, strict=True):
        np.testing.assert_array_equal(request.prompt_ids, trajectory.token_ids[start:begin])
        assert trajectory.loss_mask[begin:end].all()


@pytest.mark.parametrize("history_length", [0, 1, 2, 3, 4, 5])
def test_a_row_shows_every_turn_before_it_up_to_the_history_length(
    tokenizer: PreTrainedTokenizerFast, history_length: int
) -> None:
    _, pool, _ = play(
        tokenizer, [GO, GO, GO], history_length=history_length, template="{history_length} shown: {history}"
    )
    for played, request in enumerate(pool.requests):
        prompt = "".join(tokenizer.convert_ids_to_tokens(request.prompt_ids.tolist()))
        shown = [turn for turn in range(1, played + 1) if turn > played - history_length]
        assert f"{len(shown)} shown: " in prompt
        assert re.findall(r"Observation (\d)", prompt) == [str(turn) for turn in shown]


def test_an_opening_that_fills_the_row_is_a_bad_row(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(
        BadRow, match=r"an opening of \d+ tokens leaves no room for a reply; model.sequence_length is 20"
    ):
        play(tokenizer, [GO], sequence_length=20)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<answer>Up</answer>", "Up"),
        ("so <ANSWER>\n Up </answer> or <answer>Down</answer>", "Up"),
        ("<think><answer>Down</answer></think>\n<answer>Up</answer>", "Up"),
        ("<think><answer>Down</answer></think> none", ""),
        ("Up", ""),
        ("<answer>Up", ""),
        ("<think>or <answer>Up</answer>", ""),
        ("<answer>Up</answer> <think>or <answer>Down</answer>", "Up"),
        ("<think>a</think> <think>or <answer>Up</answer>", ""),
    ],
)
def test_what_counts_as_the_answer(text: str, action: str) -> None:
    assert parse_action(text, "<answer>(.*?)</answer>") == action


def test_a_pattern_whose_group_took_no_part_finds_no_action() -> None:
    assert parse_action("pass", "pass|play (.*)") == ""
    assert parse_action("play Up", "pass|play (.*)") == "Up"
