"""The endpoint with vLLM: streams, and log-probabilities that are the learner's. One engine for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.pipeline.serve.answers import IDS, goes_on_with_the_new_version, ids_of, side_by_side
from tests.pipeline.serve.lab import Served, serving

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = {"sidecar.engine": "vllm", "sidecar.cpu_threads": 1}
    with serving(tmp_path_factory.mktemp("serve") / "run", **keys) as made:
        yield made


@pytest.mark.parametrize(("temperature", "budget"), [(1.0, 40), (0.0, 500)])
def test_logprobs_of_a_stream_are_the_learners(served: Served, temperature: float, budget: int) -> None:
    asked = {"model": "tiny", "prompt": "What is 12 + 30?", "max_tokens": budget, "seed": 5, "temperature": temperature}
    stream = served.client().completions.create(**asked, logprobs=0, stream=True, extra_body=IDS)
    tokens: list[int] = []
    logprobs: list[float] = []
    parts = 0
    for part in stream:
        (choice,) = part.choices
        if choice.logprobs:
            parts += 1
            tokens += choice.token_ids
            logprobs += choice.logprobs.token_logprobs
    prompt = served.run.model.tokenizer(asked["prompt"])["input_ids"]
    assert parts > 1 or budget == 40
    assert len(tokens) == 500 or budget == 40  # greedy, it never ends
    np.testing.assert_allclose(logprobs, served.run.scores(prompt, tokens), atol=1e-4)


def test_logprobs_of_a_chat_are_the_learners(served: Served) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 30, "seed": 1}
    made = served.client().chat.completions.create(**asked, logprobs=True, extra_body=IDS)
    (choice,) = made.choices
    logprobs = [one.logprob for one in choice.logprobs.content]
    assert choice.prompt_token_ids == ids_of(served, "<|user|>Hi<|end|><|assistant|>")
    assert len(choice.token_ids) == len(logprobs) > 1
    scores = served.run.scores(choice.prompt_token_ids, choice.token_ids)
    np.testing.assert_allclose(logprobs, scores, atol=1e-4)


def test_200_requests_side_by_side_have_the_learners_logprobs(served: Served) -> None:
    made = side_by_side(served)
    assert len({one.text for one in made}) > 190
    for one in made[::8] + made[1::8]:  # of streams, and of whole replies
        assert len(one.tokens) == len(one.logprobs) >= 1
        np.testing.assert_allclose(one.logprobs, served.run.scores(one.prompt, one.tokens), atol=1e-4)
    served.until(lambda: served.busy() == 0, "free slots")


def test_a_chat_ends_before_its_stop_string(served: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "tiny", "messages": messages, "max_completion_tokens": 60, "n": 2}
    for seed in range(20):
        asked["seed"] = seed
        first, second = (one.message.content for one in served.client().chat.completions.create(**asked).choices)
        if len(first) > 5:
            break
    assert first != second
    stop = first[2:4]
    expected = [text.partition(stop)[0] for text in (first, second)]
    whole = served.client().chat.completions.create(**asked, stop=stop)
    assert [choice.message.content for choice in whole.choices] == expected
    texts = ["", ""]
    for part in served.client().chat.completions.create(**asked, stop=stop, stream=True):
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == expected


def test_a_client_that_leaves_frees_its_slot(served: Served) -> None:
    with served.client().completions.create(model="tiny", prompt="0123", max_tokens=500, n=4, stream=True) as stream:
        next(iter(stream))
    served.until(lambda: served.busy() == 0, "the slots of a client that left")
    served.until(lambda: served.service.endpoint.in_flight == 0, "its requests to end")


def test_a_request_in_flight_at_an_update_goes_on_with_the_new_version(served: Served) -> None:
    goes_on_with_the_new_version(served)
