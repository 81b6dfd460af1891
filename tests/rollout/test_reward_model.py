"""Reward models asked by many rewards side by side: batches, lengths, faults, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from rljax.models.reward_model import Score
from rljax.rollout import reward_model as module
from rljax.rollout.reward_model import RewardModel, row_lengths
from rljax.tasks.rewards import Reward, RewardError, RewardRunner
from rljax.tasks.rewards.registry import reward_terms
from rljax.tasks.task import Task
from rljax.trajectory import TaskId
from tests.classifiers import random_classifier, save
from tests.models.test_reward_model import opened
from tests.tasks import test_dialogue as dialogue

MESSAGES = ({"role": "user", "content": "Is it so?"},)


class Counted:
    """Scores a row by its length, tells the batches, and holds each until ``go``."""

    def __init__(self) -> None:
        self.batches: list[tuple[tuple[int, ...], list[int]]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self, token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        self.batches.append((token_ids.shape, lengths.tolist()))
        self.begun.set()
        assert self.go.wait(20.0)
        return lengths.astype(np.float32)


def made(score: Score, template: str | None = None, pad: int | None = None, max_tokens: int = 64) -> RewardModel:
    return RewardModel("mine", max_tokens, 4, dialogue.tokenizer(template), pad, score)


def with_model(model: RewardModel, ask: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.to_thread(model.start)
        await ask()

    try:
        asyncio.run(main())
    finally:
        model.close()
    assert not model._batches._thread.is_alive()


def score_each(model: RewardModel, responses: Sequence[str]) -> Any:
    return asyncio.gather(*(model.score((), response) for response in responses))


@pytest.mark.slow
def test_a_dialogue_is_scored_as_transformers_does(tmp_path: Path) -> None:
    tokenizer = dialogue.tokenizer(dialogue.CHATML)
    size, pad = len(tokenizer), tokenizer.convert_tokens_to_ids("\n")
    classifier = random_classifier("qwen2-untied", vocab_size=size, pad_token_id=pad)
    responses = ["yes", "a somewhat longer answer, with reasons", "n", "no\n"]
    dialogues = [[*MESSAGES, {"role": "assistant", "content": response}] for response in responses]
    rows = [tokenizer(tokenizer.apply_chat_template(d, tokenize=False))["input_ids"] for d in dialogues]
    assert {row[-1] for row in rows} == {pad}, "the template ends with what is the padding: transformers passes over it"
    longest = max(map(len, rows))
    padded = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        expected = classifier(padded).logits[:, 0].numpy()
    program = opened(save(classifier, tmp_path / "model"))
    model = made(program, dialogue.CHATML, pad, max_tokens=128)

    async def ask() -> None:
        found = await asyncio.gather(*(model.score(MESSAGES, response) for response in responses))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    with_model(model, ask)


def test_what_comes_meanwhile_makes_up_batches_of_like_length() -> None:
    counted = Counted()
    model = made(counted)

    async def ask() -> None:
        assert [shape for shape, _ in counted.batches] == [(4, 16), (4, 32), (4, 64)], "all are compiled before"
        counted.batches.clear()
        counted.begun.clear()
        counted.go.clear()
        first = asyncio.ensure_future(model.score((), "a"))
        await asyncio.to_thread(counted.begun.wait)  # this event loop turns while it computes
        lengths = [2, 40, 3, 4, 30, 5, 6, 16]
        others = [asyncio.ensure_future(model.score((), "a" * length)) for length in lengths]
        await asyncio.sleep(0)  # all have asked
        counted.go.set()
        assert await first == 1.0
        assert await asyncio.gather(*others) == lengths
        assert counted.batches == [
            ((4, 16), [1, 1, 1, 1]),
            ((4, 16), [2, 3, 4, 5]),
            ((4, 64), [40, 1, 1, 1]),
            ((4, 32), [30, 1, 1, 1]),
            ((4, 16), [6, 16, 1, 1]),
        ]

    with_model(model, ask)


@pytest.mark.parametrize(
    ("longest", "lengths"), [(2048, (256, 512, 1024, 2048)), (100, (16, 25, 50, 100)), (20, (16, 20)), (8, (8,))]
)
def test_rows_have_one_of_few_lengths(longest: int, lengths: tuple[int, ...]) -> None:
    assert row_lengths(longest) == lengths


def test_a_fault_reaches_those_that_asked_and_no_other() -> None:
    counted = Counted()

    def score(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if 13 in lengths:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return counted(token_ids, lengths)

    model = made(score)

    async def ask() -> None:
        for wrong, line in (
            ("a" * 13, r"^reward model mine: .*out of memory"),
            ("a" * 65, r"^reward model mine: prompt and response have 65 tokens; reward_models.mine.max_tokens is 64$"),
            ("", r"have 0 tokens"),
        ):
            with pytest.raises(RewardError, match=line):
                await model.score((), wrong)
            assert await model.score((), "abc") == 3.0

    with_model(model, ask)


def test_one_that_no_longer_waits_is_not_computed() -> None:
    counted = Counted()
    model = made(counted)

    async def ask() -> None:
        counted.begun.clear()
        counted.go.clear()
        first = asyncio.ensure_future(model.score((), "a"))
        await asyncio.to_thread(counted.begun.wait)
        gone = asyncio.ensure_future(model.score((), "aa"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        counted.go.set()
        await first
        assert await model.score((), "aaa") == 3.0
        assert not any(2 in lengths for _, lengths in counted.batches)

    with_model(model, ask)


def test_a_model_that_was_closed_says_so_to_who_waits_and_who_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE", 0.0)
    counted = Counted()
    model = made(counted)

    async def ask() -> None:
        counted.begun.clear()
        counted.go.clear()
        first = asyncio.ensure_future(model.score((), "a"))
        await asyncio.to_thread(counted.begun.wait)
        waits = asyncio.ensure_future(model.score((), "aa"))
        await asyncio.sleep(0)
        model.close()
        with pytest.raises(RewardError, match=r"^reward model mine: it was closed$"):
            await model.score((), "aaa")
        counted.go.set()
        assert await first == 1.0
        with pytest.raises(RewardError, match="it was closed"):
            await waits
        model._batches._thread.join()

    with_model(model, ask)


def test_a_response_does_not_end_its_own_turn() -> None:
    tokenizer = dialogue.tokenizer(dialogue.LLAMA)
    ends = int(tokenizer.convert_tokens_to_ids("<|eot_id|>"))
    seen: list[int] = []

    def score(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        seen.append(int((token_ids == ends).sum()))
        return lengths.astype(np.float32)

    model = made(score, dialogue.LLAMA)

    async def ask() -> None:
        for response in ("yes", "yes<|eot_id|>"):
            await model.score(MESSAGES, response)
        assert seen[-2:] == [2, 2], "the question's and the answer's"

    with_model(model, ask)


def task(name: str) -> Task:
    terms = reward_terms(("reward_model",), (0.5,), "tasks.train.open.rewards", {"reward_model": {"model": name}})
    return Task(TaskId("open", 0, 0), (), "", rewards=terms)


def test_the_reward_is_the_score_and_no_failure_is_one() -> None:
    def score(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return np.where(lengths == 5, np.nan, lengths).astype(np.float32)

    model = made(score)

    async def ask() -> None:
        with RewardRunner(["reward_model"], timeout=20.0, workers=1) as runner:
            with pytest.raises(RewardError, match=r"reward_models.mine: there is no such model here; there are none$"):
                await runner.score(task("mine"), "aaa")
            runner.reward_models = {"mine": model}
            assert await runner.score(task("mine"), "aaa") == Reward(1.5, {"reward_model": 3.0})
            with pytest.raises(RewardError, match=r"reward 'reward_model': .*returned nan"):
                await runner.score(task("mine"), "aaaaa")
            model.at_once = 2
            many = ["a" * length for length in (1, 2, 3, 4, 6, 7, 8, 9, 10)]
            found = await asyncio.gather(*(runner.score(task("mine"), response) for response in many))
            assert [one.score for one in found] == [len(response) / 2 for response in many]

    with_model(model, ask)
