"""The endpoint with vLLM: streams, and log-probabilities that are the learner's. One engine for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.pipeline.serve.lab import Served, serving

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = {"sidecar.engine": "vllm", "sidecar.cpu_threads": 1, "serve.follow": False, "serve.version": "0"}
    with serving(tmp_path_factory.mktemp("serve") / "run", **keys) as made:
        yield made


@pytest.mark.parametrize(("temperature", "budget"), [(1.0, 40), (0.0, 500)])
def test_logprobs_of_a_stream_are_the_learners(served: Served, temperature: float, budget: int) -> None:
    asked = {"model": "tiny", "prompt": "What is 12 + 30?", "max_tokens": budget, "seed": 5, "temperature": temperature}
    stream = served.client().completions.create(**asked, logprobs=0, stream=True, extra_body={"return_token_ids": True})
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
