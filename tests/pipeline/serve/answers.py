"""Answers that do not end by themselves."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np
import openai

from sidecar.protocol import PauseMode
from tests.pipeline.serve.lab import Served

LONG = 500
"""Tokens of an answer that is still under way when a test has seen its beginning: the engine is paused meanwhile."""
IDS = {"return_token_ids": True}


class Answer(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    text: str


def ids_of(served: Served, text: str) -> list[int]:
    return served.run.model.tokenizer(text, add_special_tokens=False)["input_ids"]


def long_answer(served: Served, **fields: Any) -> dict[str, Any]:
    """A request whose answer does not end by itself: its seed is one of those that sample no end token."""
    return {"model": "tiny", "prompt": "0123", "max_tokens": LONG, "seed": unending(served), **fields}


_unending: list[int] = []


def unending(served: Served) -> int:
    if not _unending:
        for seed in range(200):
            made = served.client().completions.create(model="tiny", prompt="0123", max_tokens=LONG, seed=seed)
            if made.choices[0].finish_reason == "length":
                _unending.append(seed)
                break
    return _unending[0]


def side_by_side(served: Served, count: int = 200) -> list[Answer]:
    """Asks so many questions at once, every second one as a stream."""

    async def one(client: openai.AsyncOpenAI, number: int) -> Answer:
        asked = {"model": "tiny", "prompt": f"{number} is", "max_tokens": 24, "seed": number, "logprobs": 0}
        made = await client.completions.create(**asked, stream=number % 2 == 0, extra_body=IDS)
        parts = [made] if number % 2 else [part async for part in made]
        choices = [choice for part in parts for choice in part.choices]
        sampled = [choice for choice in choices if choice.logprobs]
        tokens = [token for choice in sampled for token in choice.token_ids]
        logprobs = [logprob for choice in sampled for logprob in choice.logprobs.token_logprobs]
        return Answer(ids_of(served, asked["prompt"]), tokens, logprobs, "".join(choice.text for choice in choices))

    async def main() -> list[Answer]:
        async with served.async_client() as client:
            return await asyncio.gather(*(one(client, number) for number in range(count)))

    return asyncio.run(main())


def goes_on_with_the_new_version(served: Served) -> None:
    """Asserts that an answer goes on with the new weights, and says so, where version 1 comes while it is under way."""
    request = long_answer(served, logprobs=0)
    tokens, logprobs, fingerprints = [], [], []
    with served.client().completions.create(**request, stream=True, extra_body=IDS) as stream:
        parts = iter(stream)
        first = next(parts)
        served.do(served.engine.pause(PauseMode.KEEP))
        served.run.announce()
        served.until(lambda: served.service.pool.serving.version == 1, "version 1 to be served")
        served.do(served.engine.resume())
        for part in (first, *parts):
            fingerprints.append(part.system_fingerprint)
            if part.choices[0].logprobs:
                tokens += part.choices[0].token_ids
                logprobs += part.choices[0].logprobs.token_logprobs
    assert len(tokens) > 8
    assert (fingerprints[0], fingerprints[-2], fingerprints[-1]) == ("version-0", "version-1", "version-0..1")
    prompt = ids_of(served, request["prompt"])
    scores = [served.run.scores(prompt, tokens, version) for version in (0, 1)]
    of = [np.isclose(logprobs, one, atol=1e-4) for one in scores]
    change = int(np.argmin(of[0]))  # the first token that is not of version 0
    assert 0 < change < len(tokens)
    assert of[0][:change].all()
    assert of[1][change:].all()
    assert served.client().models.list().data[0].model_dump()["version"] == 1
