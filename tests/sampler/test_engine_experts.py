"""The engine with a model of experts, against transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljax.models.common.architecture import Architecture
from rljax.models.files import load_directory
from rljax.models.hf_names import to_hf
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import GenerateRequest, PauseMode, SamplingParams, WeightUpdate
from tests.models.hf_models import random_model, routes_of, save
from tests.waiting import Gate

pytestmark = pytest.mark.slow

PROMPTS = [[3], [5, 9, 9, 1], list(range(1, 24)), [60, 0, 33], [7] * 17]


@asynccontextmanager
async def serving(updates: list[WeightUpdate], architecture: Architecture, **options: Any):
    engine = EmbeddedEngine(architecture, slots=4, max_length=64, decode_steps=4, dtype=np.float32, **options)
    try:
        await engine.update_weights(updates[0])
        yield engine
    finally:
        await engine.close()


def published(directory: Path, seeds: Sequence[int]) -> tuple[list[Any], Architecture, list[WeightUpdate]]:
    """Models of these seeds, and the versions 0, 1, … that they are."""
    models, updates = [random_model("qwen3_moe", seed) for seed in seeds], []
    for version, model in enumerate(models):
        architecture, params = load_directory(save(model, directory / f"model-{version}"))
        tensors = {name: np.asarray(array) for name, array in to_hf(params, architecture).items()}
        path = OrbaxPublisher(directory).publish(version, 1, tensors, model="tiny", dtype="fp32")
        updates.append(WeightUpdate(version, 1, str(path)))
    return models, architecture, updates


def asked(prompt: Sequence[int], tokens: int = 20) -> GenerateRequest:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=tokens, seed=3)
    return GenerateRequest(str(prompt), np.asarray(prompt, np.int32), sampling, 0)


def test_the_experts_of_each_token_but_the_last_are_those_of_transformers(tmp_path: Path) -> None:
    (model,), architecture, updates = published(tmp_path, [0])

    async def main():
        async with serving(updates, architecture, record_routes=True) as engine:
            return await asyncio.gather(*(engine.generate(asked(prompt)) for prompt in PROMPTS))

    for prompt, completion in zip(PROMPTS, asyncio.run(main()), strict=True):
        tokens = np.array([*prompt, *completion.token_ids])
        routes = completion.routes
        assert (routes.dtype, routes.shape) == (np.int16, (len(tokens), 2, model.config.num_experts_per_tok))
        np.testing.assert_array_equal(np.sort(routes[:-1]), routes_of(model, tokens)[:-1])
        assert (routes[-1] == -1).all()


def test_an_update_in_flight_leaves_the_experts_of_what_was_sampled_before(tmp_path: Path) -> None:
    models, architecture, updates = published(tmp_path, [0, 1])
    prompt, gate = PROMPTS[2], Gate(2)

    async def main():
        async with serving(updates, architecture, record_routes=True, trace=gate) as engine:
            request = asyncio.create_task(engine.generate(asked(prompt)))
            await gate.wait()
            pause = asyncio.create_task(engine.pause(PauseMode.KEEP))
            gate.opened.set()
            await pause
            await engine.update_weights(updates[1])
            await engine.resume()
            return await request

    completion = asyncio.run(main())
    tokens = np.array([*prompt, *completion.token_ids])
    old = len(prompt) - 1 + np.count_nonzero(completion.versions == 0)  # the last one's token was read before it
    assert len(prompt) < old < len(tokens) - 1
    before, after = (routes_of(model, tokens) for model in models)
    np.testing.assert_array_equal(np.sort(completion.routes[:old]), before[:old])
    np.testing.assert_array_equal(np.sort(completion.routes[old:-1]), after[old:-1])
    assert (before[:old] != after[:old]).any()


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral-untied"])
def test_greedy_equals_transformers_generate(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    architecture, params = load_directory(save(model, tmp_path / "model"))
    tensors = {name: np.asarray(array) for name, array in to_hf(params, architecture).items()}
    path = OrbaxPublisher(tmp_path).publish(0, 1, tensors, model="tiny", dtype="fp32")

    async def main():
        engine = EmbeddedEngine(architecture, slots=4, max_length=64, decode_steps=4, dtype=np.float32)
        try:
            await engine.update_weights(WeightUpdate(0, 1, str(path)))
            asked = [
                GenerateRequest(str(i), np.asarray(p, np.int32), SamplingParams(temperature=0, max_new_tokens=20), 0)
                for i, p in enumerate(PROMPTS)
            ]
            return await asyncio.gather(*map(engine.generate, asked))
        finally:
            await engine.close()

    for prompt, completion in zip(PROMPTS, asyncio.run(main()), strict=True):
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
        expected = model.generate(ids, do_sample=False, max_new_tokens=20, **options)[0]
        assert completion.token_ids.tolist() == expected[len(prompt) :].tolist()
        with torch.no_grad():
            logits = model(expected[None]).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(1, expected[len(prompt) :, None])[:, 0].numpy()
        np.testing.assert_allclose(completion.logprobs, logprobs, atol=1e-4)
