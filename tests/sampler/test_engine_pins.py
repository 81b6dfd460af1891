"""The embedded engine holds versions side by side, and each request keeps the one that it began with, and its KV."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljax.config.model import LoraConfig
from rljax.models.files import load_architecture
from rljax.sampler.adapted import Below
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.channels.files import read_version
from sidecar.protocol import (
    Completion,
    GenerateRequest,
    PinnedVersionError,
    SamplingParams,
    UpdatePolicy,
    WeightUpdate,
    WeightUpdateError,
)
from tests.sampler.conftest import Lab as Room
from tests.sampler.test_engine_adapters import logprobs, published

LORA = LoraConfig(rank=4, alpha=8.0)
COUNTS = (1.0, -1.0, 0.5, 2.0, -0.5)
"""How much the adapter of each version counts, of that of the first."""
HELD = 2
PROMPT = np.arange(3, 20, dtype=np.int32)


class Lab:
    """A model of PEFT's, and versions of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model, path = published(directory, "qwen3", LORA)
        self.version = read_version(path)
        self.updates = [self.publish(number, 2, count) for number, count in enumerate(COUNTS)]

    def publish(self, number: int, lineage: int, count: float) -> WeightUpdate:
        tensors = {
            name: tensor * np.float32(count if ".lora_B." in name else 1)
            for name, tensor in self.version.tensors.items()
        }
        publisher, adapter = OrbaxPublisher(self.directory / "weights"), self.version.manifest.adapter
        path = publisher.publish(number, lineage, tensors, model="", dtype="fp32", adapter=adapter)
        return WeightUpdate(number, lineage, str(path), UpdatePolicy.PIN)

    def engine(self, **settings: Any) -> EmbeddedEngine:
        chosen: dict[str, Any] = {"slots": 4, "max_length": 128, "decode_steps": 2, "dtype": np.float32, "held": HELD}
        base = self.directory / "base"
        return EmbeddedEngine(load_architecture(base), below=Below(base), **(chosen | settings))

    def logprobs(self, count: float, tokens: np.ndarray) -> np.ndarray:
        """What PEFT says of tokens[1:] by a version whose adapter counts so much."""
        matrices = [p for name, p in self.model.named_parameters() if "lora_B" in name]
        with torch.no_grad():
            before = [p.clone() for p in matrices]
            for p in matrices:
                p.mul_(count)
            found = logprobs(self.model, tokens)
            for p, old in zip(matrices, before, strict=True):
                p.copy_(old)
        return found

    def is_of(self, number: int, done: Completion, count: float | None = None) -> None:
        assert set(done.versions.tolist()) == {number}
        said = self.logprobs(COUNTS[number] if count is None else count, np.concatenate([PROMPT, done.token_ids]))
        np.testing.assert_allclose(done.logprobs, said[len(PROMPT) - 1 :], atol=1e-4)


def ask(engine: EmbeddedEngine, name: str, tokens: int, version: int | None = None) -> asyncio.Future[Completion]:
    sampling = SamplingParams(max_new_tokens=tokens, seed=len(name))
    request = GenerateRequest(name, PROMPT, sampling, min_version=version or 0, pinned=version is not None)
    return asyncio.ensure_future(engine.generate(request))


def on(engine: EmbeddedEngine, work: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        try:
            await work
        finally:
            await engine.close()

    asyncio.run(main())


def test_requests_of_several_versions_are_sampled_for_at_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    engine = lab.engine()

    async def main() -> None:
        await engine.update_weights(lab.updates[0])
        first = ask(engine, "first", 100)
        await Room.until(lambda: engine._batch.tokens_sampled > 0)
        await engine.pause("keep")
        assert not first.done()
        await engine.update_weights(lab.updates[1])
        both = [ask(engine, "second", 9), ask(engine, "turn", 9, 0), ask(engine, "third", 9, 1)]
        await Room.until(lambda: engine._stepper.in_flight == 4)
        await engine.resume()  # those with the same prompt are read together, but for their versions
        for done, version in zip(await asyncio.gather(*both), (1, 0, 1), strict=True):
            lab.is_of(version, done)
        lab.is_of(0, await first)
        read = (await engine.status()).details["prefilled_tokens"]
        assert read == 3 * (len(PROMPT) - 1), "the first one keeps its KV; two of the three share theirs"
        tokens = np.arange(3, 40, dtype=np.int32)
        np.testing.assert_allclose(await engine.score(tokens), lab.logprobs(COUNTS[1], tokens), atol=1e-4)

    on(engine, main())


def test_what_is_held_no_more_is_said_to_be(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    engine = lab.engine()

    async def main() -> None:
        await engine.update_weights(lab.updates[0])
        lost = ask(engine, "lost", 100, 0)
        await Room.until(lambda: engine._batch.tokens_sampled > 0)
        await engine.pause("keep")
        ahead = ask(engine, "ahead", 4, 2)
        for version in (1, 2):
            await engine.update_weights(lab.updates[version])
        await engine.resume()
        with pytest.raises(PinnedVersionError, match="lost: engine-0 does not hold version 0, which it is pinned to"):
            await lost
        lab.is_of(2, await ahead)
        lab.is_of(1, await ask(engine, "held", 4, 1))

    on(engine, main())


def test_an_older_version_that_is_validated_takes_nothing_from_those_in_use(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    engine = lab.engine()

    async def main() -> None:
        for version in (2, 3):
            await engine.update_weights(lab.updates[version])
        under_way = ask(engine, "under way", 100, 3)
        await Room.until(lambda: engine._batch.tokens_sampled > 0)
        await engine.pause("keep")
        await engine.update_weights(lab.updates[1])
        assert (await engine.status()).running == 1, "it keeps its slot, and its KV"
        await engine.resume()
        lab.is_of(3, await under_way)
        lab.is_of(1, await ask(engine, "validation", 4))
        held = ask(engine, "held", 4, 3)
        await engine.update_weights(lab.updates[3])
        lab.is_of(3, await held)
        lab.is_of(2, await ask(engine, "older", 4, 2))
        for version in (4, 3):  # each place is taken by another again and again
            await engine.update_weights(lab.updates[version])
            lab.is_of(version, await ask(engine, f"at {version}", 4))

    on(engine, main())


def test_a_new_lineage_takes_what_it_publishes_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    engine, again = lab.engine(), lab.publish(3, 3, -2.0)

    async def main() -> None:
        for version in (2, 3, 4):
            await engine.update_weights(lab.updates[version])
        await engine.update_weights(again)
        lab.is_of(3, await ask(engine, "again", 4), -2.0)

    on(engine, main())


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    _, path = published(tmp_path / "wide", "qwen3", LoraConfig(rank=6, alpha=12.0))
    engine, plain = lab.engine(), lab.engine(held=0)
    wide = WeightUpdate(1, 1, str(path), UpdatePolicy.PIN)

    async def main() -> None:
        await engine.update_weights(lab.updates[0])
        with pytest.raises(WeightUpdateError, match="no adapter of the rank"):
            await engine.update_weights(wide)
        with pytest.raises(WeightUpdateError, match=r"holds one version at a time: .* by policy pin"):
            await plain.update_weights(lab.updates[0])
        lab.is_of(0, await ask(engine, "goes on", 4))
        await plain.close()

    on(engine, main())
