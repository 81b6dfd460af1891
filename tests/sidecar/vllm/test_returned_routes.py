"""Experts that vLLM itself returns, as on a GPU: with the last output of a request, for all tokens but the last one.

vLLM is a stand-in here, of whose model's 200 experts a token of id n goes to n and n + 1 in each of three layers; what
it samples counts on from the prompt's last token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sidecar.protocol import Completion, EngineUnfitError, GenerateRequest, SamplingParams
from sidecar.vllm.settings import VllmSettings

concurrent = pytest.importorskip("sidecar.vllm.concurrent", reason="needs vLLM")

PROMPT = np.array([50, 51, 52], np.int32)
LAYERS, PICKED = 3, 2


def experts_of(tokens: Sequence[int]) -> np.ndarray:
    """uint8 ``[n, layers, picked]``, as vLLM returns them of up to 256 experts."""
    return np.tile(np.asarray(tokens, np.uint8)[:, None, None] + np.arange(PICKED, dtype=np.uint8), (1, LAYERS, 1))


class StandIn:
    """Of `AsyncLLM`, what samples a request: a token for each output, or all of them with the last."""

    model_config = SimpleNamespace(get_vocab_size=lambda: 250)

    def __init__(self) -> None:
        self.spans: list[tuple[str, int]] = [("0", 0)]
        self.records = True
        self.halts_after = 100
        self.halted = asyncio.Event()
        self._aborted = asyncio.Event()

    async def get_supported_tasks(self) -> None:
        pass

    async def generate(self, prompt: Any, params: Any, name: str, **options: Any) -> AsyncIterator[Any]:
        read, stepwise = list(prompt["prompt_token_ids"]), params.output_kind.name == "DELTA"
        made: list[int] = []
        while len(made) < params.max_tokens and not self._aborted.is_set():
            made.append(read[-1] + 1 + len(made))
            if stepwise:
                yield self._output(made[-1:], None, None)
                if self._aborted.is_set():  # one more was sampled meanwhile
                    made.append(made[-1] + 1)
                    yield self._output(made[-1:], None, None)
            if len(made) == self.halts_after:
                self.halted.set()
                await self._aborted.wait()
        yield self._output(
            [] if stepwise else made, (read + made)[:-1], "abort" if self._aborted.is_set() else "length", len(made)
        )

    def _output(self, tokens: list[int], routed: list[int] | None, reason: str | None, made: int = 0) -> Any:
        starts = [begin for _, begin in self.spans] + [made]
        spans = [
            SimpleNamespace(version=version, start=begin, end=end)
            for (version, begin), end in zip(self.spans, starts[1:], strict=True)
        ]
        sampled = SimpleNamespace(
            token_ids=list(tokens),
            logprobs=SimpleNamespace(logprobs=[-1.0] * len(tokens), start_indices=range(len(tokens))),
            weight_versions=spans,
            routed_experts=experts_of(routed) if self.records and routed is not None else None,
            finish_reason=reason,
        )
        return SimpleNamespace(outputs=[sampled], finished=reason is not None)

    async def abort(self, names: Sequence[str]) -> None:
        if names:
            self._aborted.set()

    def shutdown(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(concurrent, "AsyncLLM", SimpleNamespace(from_vllm_config=lambda *_, **__: StandIn()))
    monkeypatch.setattr(concurrent, "checked_config", lambda arguments: None)
    settings = VllmSettings(model="none", max_length=64, slots=4, record_routes=True)
    made = concurrent.ConcurrentVllm(settings, "engine 0")
    made._version = 0
    # a text for each token: its id, and a space
    made._tokenizer = SimpleNamespace(decode=lambda tokens, **_: "".join(f"{token} " for token in tokens))
    yield made
    asyncio.run(made.close())


def ask(engine: Any, new: int = 5, stops: tuple[str, ...] = ()) -> Completion:
    sampling = SamplingParams(max_new_tokens=new, stop_strings=stops)
    return asyncio.run(engine.generate(GenerateRequest("a", PROMPT, sampling)))


def check(found: Completion, new: Sequence[int], versions: Sequence[int]) -> None:
    assert found.token_ids.tolist() == list(new)
    assert found.versions.tolist() == list(versions)
    tokens = [*PROMPT, *new]
    assert (found.routes.dtype, found.routes.shape) == (np.int16, (len(tokens), LAYERS, PICKED))
    np.testing.assert_array_equal(found.routes[:-1], experts_of(tokens[:-1]))
    assert (found.routes[-1] == -1).all(), "nothing was sampled from the last one"


def test_a_whole_answer_has_the_experts_of_all_that_it_was_sampled_from(engine: Any) -> None:
    check(ask(engine), range(53, 58), [0] * 5)


def test_tokens_behind_a_stop_string_are_cut_off_with_their_experts(engine: Any) -> None:
    found = ask(engine, stops=("55 ",))
    assert found.finish_reason == "stop"
    check(found, range(53, 56), [0] * 3)


def test_an_answer_of_two_versions_has_the_experts_of_both(engine: Any) -> None:
    engine._engine.spans = [("0", 0), ("1", 2)]
    check(ask(engine), range(53, 58), [0, 0, 1, 1, 1])


def test_an_answer_that_is_aborted_has_those_of_what_came(engine: Any) -> None:
    engine._engine.halts_after = 2

    async def aborted() -> Completion:
        request = GenerateRequest("a", PROMPT, SamplingParams(max_new_tokens=5))
        asking = asyncio.ensure_future(engine._generate(request))
        await engine._engine.halted.wait()
        await engine._abort(lambda running: True)
        return await asking

    found = asyncio.run_coroutine_threadsafe(aborted(), engine._loop).result(60.0)
    assert found.finish_reason == "abort"
    check(found, range(53, 55), [0, 0])


def test_tokens_without_the_experts_that_were_asked_for_are_an_error(engine: Any) -> None:
    engine._engine.records = False
    with pytest.raises(EngineUnfitError, match=r"engine 0: vLLM returned tokens without their experts"):
        ask(engine)
