"""A tiny real model in fp32, published twice with different weights, and transformers' opinion of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rljax.models.common.architecture import Architecture
from rljax.models.families.registry import to_config
from rljax.models.hf_names import to_hf
from rljax.models.transformer import init_params
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import Completion, GenerateRequest, SamplingParams, WeightUpdate
from tests.waiting import HANGS, Gate

ARCHITECTURE = Architecture(
    family="qwen3",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    tie_embeddings=True,
    qk_norm=True,
    max_position_embeddings=256,
)
DEADLINE = HANGS


@dataclasses.dataclass
class Lab:
    """What the tests of this room share."""

    publisher: OrbaxPublisher
    updates: list[WeightUpdate]
    models: list[torch.nn.Module]
    gate: type[Gate] = Gate
    deadline: float = DEADLINE

    @staticmethod
    def request(name: str, prompt: list[int] | np.ndarray, min_version: int = 0, priority: int = 0, **sampling):
        prompt_ids = np.asarray(prompt, np.int32)
        return GenerateRequest(name, prompt_ids, SamplingParams(**sampling), min_version, priority=priority)

    @contextlib.asynccontextmanager
    async def engine(self, version: int | None = 0, **options) -> AsyncIterator[EmbeddedEngine]:
        settings = {"slots": 4, "max_length": 64, "decode_steps": 4, "dtype": np.float32, **options}
        engine = EmbeddedEngine(ARCHITECTURE, **settings)
        try:
            if version is not None:
                await engine.update_weights(self.updates[version])
            yield engine
        finally:
            if isinstance(gate := options.get("trace"), Gate):
                gate.opened.set()
            await engine.close()

    def whole(self, request: GenerateRequest) -> Completion:
        """What a request gets that nothing disturbs."""

        async def main() -> Completion:
            async with self.engine() as engine:
                return await engine.generate(request)

        return asyncio.run(main())

    def logits(self, prompt, tokens=(), version: int = 0) -> np.ndarray:
        """float64 [n, vocabulary]: what transformers predicts for each response token from its whole prefix."""
        ids = torch.tensor([[*prompt, *tokens]])
        with torch.no_grad():
            logits = self.models[version](ids).logits[0].numpy()
        return logits[len(prompt) - 1 : len(prompt) - 1 + len(tokens)] if len(tokens) else logits

    def logprobs(self, prompt, completion: Completion, temperature: float = 1.0, version: int = 0) -> np.ndarray:
        logits = self.logits(prompt, completion.token_ids.tolist(), version) / temperature
        table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return table[np.arange(len(completion.token_ids)), completion.token_ids]

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, "the test waited too long"
            await asyncio.sleep(0.001)


@functools.cache
def _reference(version: int) -> tuple[dict[str, np.ndarray], torch.nn.Module]:
    # larger weights than at initialisation, so that distributions are far from uniform
    params = jax.tree.map(lambda w: w * (4.0 if w.ndim > 1 else 1.0), init_params(ARCHITECTURE, version))
    tensors = {name: np.asarray(array) for name, array in to_hf(params, ARCHITECTURE).items()}
    model = AutoModelForCausalLM.from_config(Qwen3Config(**to_config(ARCHITECTURE))).double().eval()
    model.load_state_dict(
        {name: torch.from_numpy(array.astype(np.float64)) for name, array in tensors.items()}, strict=False
    )
    model.tie_weights()
    return tensors, model


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    publisher = OrbaxPublisher(tmp_path)
    updates, models = [], []
    for version in range(2):
        tensors, model = _reference(version)
        path = publisher.publish(version, 1, tensors, model="tiny", dtype="fp32")
        updates.append(WeightUpdate(version, 1, str(path)))
        models.append(model)
    return Lab(publisher, updates, models)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
