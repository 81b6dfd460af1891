"""vLLM in this process, stepped by a thread of ours: the small engine, for one device and for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from sidecar.channels.versions import PublishedVersion, receive
from sidecar.protocol import EngineError
from sidecar.stepping.engine import SteppedEngine
from sidecar.stepping.jobs import Job, Tokenizer, end_of_text
from sidecar.vllm.sampling import continuation, probe, sampled_logprobs, scores
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.tokenizer import LazyTokenizer
from sidecar.vllm.weights import check_against_model, whole


class VllmBatch:
    """A vLLM engine core as `sidecar.stepping.batch.Batch`."""

    def __init__(self, engine: LLMEngine, slots: int, tokenizer: Tokenizer) -> None:
        self.slots = slots
        self.version = -1
        self.tokens_sampled = 0
        self._engine = engine
        self._tokenizer = tokenizer
        self._jobs: dict[str, Job] = {}  # by the id that vLLM knows them by
        self._ended: list[tuple[Job, str]] = []
        self._serial = 0

    @property
    def running(self) -> int:
        """See `Batch.running`."""
        return len(self._jobs) + len(self._ended)

    def load(self, weights: Mapping[str, np.ndarray], version: int) -> Sequence[Job]:
        """See `Batch.load`. Running requests keep their slots and are read again with the new weights."""
        # engine_args.kv_transfer_config may name a connector, which keeps KV of its own
        if not self._engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
            raise RuntimeError("vLLM's KV connector cannot drop the KV of older weights; choose another or none")
        self._engine.collective_rpc("load_version", args=(weights,))
        self.version = version
        return []

    def evict(self) -> Sequence[Job]:
        """See `Batch.evict`."""
        jobs = list(self._jobs.values())
        self._forget(list(self._jobs))
        return jobs

    def admit(self, jobs: Sequence[Job]) -> None:
        """See `Batch.admit`."""
        for job in jobs:
            prompt, params = continuation(job, stepwise=True)
            self._jobs[self._add(prompt, params)] = job

    def remove(self, job: Job) -> None:
        """See `Batch.remove`."""
        self._forget([name for name, holder in self._jobs.items() if holder is job])
        self._ended = [(holder, reason) for holder, reason in self._ended if holder is not job]

    def step(self) -> Sequence[tuple[Job, str]]:
        """See `Batch.step`."""
        if not self._ended:
            self._step()
        ended, self._ended = self._ended, []
        return ended

    def score(self, token_ids: np.ndarray) -> np.ndarray:
        """See `Batch.score`. The running requests go on meanwhile."""
        name = self._add(*probe(token_ids))
        while True:
            for output in self._step():
                if output.request_id == name:
                    return scores(output.prompt_logprobs)

    def close(self) -> None:
        """See `Batch.close`."""
        self._engine.engine_core.shutdown()

    def _add(self, prompt: Any, params: Any) -> str:
        self._serial += 1
        self._engine.add_request(name := str(self._serial), prompt, params)
        return name

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            del self._jobs[name]
        self._engine.abort_request(list(names))

    def _step(self) -> Sequence[Any]:
        outputs = self._engine.step()
        for output in outputs:
            if output.request_id in self._jobs:
                self._take(output)
        return outputs

    def _take(self, output: Any) -> None:
        job, sampled = self._jobs[output.request_id], output.outputs[0]
        tokens, logprobs = list(sampled.token_ids), sampled_logprobs(sampled.logprobs)
        reason, stops = sampled.finish_reason, job.request.sampling.stop_strings
        if stops and tokens:
            response = job.resumed() + job.tokens
            end = end_of_text(response + tokens, len(response), stops, self._tokenizer)
            if end is not None:
                tokens, reason = tokens[: end - len(response)], "stop"
        job.extend(tokens, logprobs[: len(tokens)], self.version)
        self.tokens_sampled += len(tokens)
        if reason is None:
            return
        if output.finished:
            del self._jobs[output.request_id]
        else:
            self._forget([output.request_id])
        self._ended.append((job, reason))


class SteppedVllm(SteppedEngine):
    """Serves requests with vLLM's engine core in this process. Implements `sidecar.protocol.Engine`."""

    def __init__(self, engine: LLMEngine, settings: VllmSettings, name: str) -> None:
        """Takes over an engine that holds no requests."""
        self._model = settings.model
        super().__init__(
            VllmBatch(engine, settings.slots, LazyTokenizer(settings.model)),
            name=name,
            max_length=settings.max_length,
            vocab_size=engine.model_config.get_vocab_size(),
            has_tokenizer=True,
            receive=receive,
        )

    def _place(self, published: PublishedVersion) -> Mapping[str, np.ndarray]:
        published = whole(published, self._model)
        check_against_model(published, self._model)
        return published.tensors


def open_engine(*, name: str, settings: Mapping[str, Any]) -> SteppedVllm:
    """Starts vLLM here. ``VLLM_ENABLE_V1_MULTIPROCESSING=0`` must stand in the environment.

    Raises:
        EngineError: it cannot be stepped here.
    """
    how = VllmSettings(**settings)
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0" or how.tensor_parallel_size > 1:
        raise EngineError(
            f"{name}: sidecar.engine=vllm runs in one process on one device; for more set sidecar.engine=vllm_async"
        )
    arguments = how.arguments(on_cpu=current_platform.is_cpu()) | {
        "async_scheduling": False
    }  # a step ends with its tokens known
    return SteppedVllm(LLMEngine.from_engine_args(EngineArgs(**arguments)), how, name)
