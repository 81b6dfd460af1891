"""An abort that comes while vLLM is asked for its first answer. vLLM itself is a stand-in here: it is slow to say what
it can do, and knows no request before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sidecar.protocol import GenerateRequest, SamplingParams
from sidecar.stepping.jobs import Job
from sidecar.vllm.settings import VllmSettings

concurrent = pytest.importorskip("sidecar.vllm.concurrent", reason="needs vLLM")


class StandIn:
    """Of `AsyncLLM`, what a request meets on its way in."""

    model_config = SimpleNamespace(get_vocab_size=lambda: 100)

    def __init__(self) -> None:
        self._asked = False
        self.entered = asyncio.Event()
        self._known: dict[str, asyncio.Event] = {}

    async def get_supported_tasks(self) -> None:
        for _ in range(0 if self._asked else 100):
            await asyncio.sleep(0)
        self._asked = True

    async def generate(self, prompt: Any, params: Any, name: str, **options: Any) -> AsyncIterator[Any]:
        self.entered.set()
        await self.get_supported_tasks()
        ended = self._known[name] = asyncio.Event()
        await ended.wait()
        sampled = SimpleNamespace(
            token_ids=[], logprobs=None, weight_versions=(), routed_experts=None, finish_reason="abort"
        )
        yield SimpleNamespace(outputs=[sampled], finished=True)

    async def abort(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._known:
                self._known[name].set()

    def shutdown(self) -> None:
        pass


def test_an_abort_of_the_very_first_request_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "AsyncLLM", SimpleNamespace(from_vllm_config=lambda *_, **__: StandIn()))
    monkeypatch.setattr(concurrent, "checked_config", lambda arguments: None)
    monkeypatch.setattr(concurrent, "sampled_logprobs", lambda logprobs: [])
    monkeypatch.setattr(Job, "sequence", lambda self: np.array([7], np.int32))
    engine = concurrent.ConcurrentVllm(VllmSettings(model="none", max_length=64, slots=4), "engine 0")
    engine._version = 0

    async def abort_as_soon_as_it_has_a_slot() -> str:
        asking = asyncio.ensure_future(
            engine._generate(GenerateRequest("a", np.array([7], np.int32), SamplingParams(max_new_tokens=8)))
        )
        await engine._engine.entered.wait()
        await engine._abort(lambda running: True)
        async with asyncio.timeout(10.0):
            completion = await asking
        return str(completion.finish_reason)

    assert asyncio.run_coroutine_threadsafe(abort_as_soon_as_it_has_a_slot(), engine._loop).result(60.0) == "abort"
    asyncio.run(engine.close())
