"""The engine with a model of experts, against transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from rljax.models.files import load_directory
from rljax.models.hf_names import to_hf
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import GenerateRequest, SamplingParams, WeightUpdate
from tests.models.hf_models import random_model, save

pytestmark = pytest.mark.slow

PROMPTS = [[3], [5, 9, 9, 1], list(range(1, 24)), [60, 0, 33], [7] * 17]


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
