"""vLLM's engine core as a batch: what it samples for, and with which weights."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from vllm.lora.request import LoRARequest
from vllm.v1.engine.llm_engine import LLMEngine

from sidecar.held import HeldVersions
from sidecar.stepping.jobs import Job, Tokenizer, Trace, end_of_text
from sidecar.vllm.routes import RouteRecorder
from sidecar.vllm.sampling import check_no_routes, continuation, probe, sampled_logprobs, scores


class VllmBatch:
    """A vLLM engine core as `sidecar.stepping.batch.Batch`."""

    def __init__(
        self,
        engine: LLMEngine,
        slots: int,
        tokenizer: Tokenizer,
        held: HeldVersions[LoRARequest] | None = None,
        trace: Trace | None = None,
        recorder: RouteRecorder | None = None,
    ) -> None:
        """Takes over an engine that holds no requests; ``held`` are its versions where it holds several, each an
        adapter of the weights that it was started on. ``recorder`` has the experts of its tokens. ``trace`` is called
        for every ``step``; every ``reread``: a step in which a request is read again after an update; and every
        ``stage``: a part of a version is loaded.
        """
        self._trace = trace
        self._recorder = recorder
        self._read_again: set[str] = set()
        self.slots = slots
        self.version = -1
        self.tokens_sampled = 0
        self._engine = engine
        self._tokenizer = tokenizer
        self._jobs: dict[str, Job] = {}  # by the id that vLLM is given
        self._inside: dict[str, str] = {}  # the id that its workers know each by
        self._began: dict[str, int] = {}  # the version that each began with
        self._held = held
        self._ended: list[tuple[Job, str]] = []
        self._serial = 0
        self._salt = 0  # of what may share KV: counts the updates at which running requests kept theirs

    @property
    def running(self) -> int:
        """See `Batch.running`."""
        return len(self._jobs) + len(self._ended)

    def holds(self, version: int) -> bool:
        """See `Batch.holds`."""
        return version == self.version if self._held is None else version in self._held

    def load(self, weights: Any, version: int, lineage: int, keep_kv: bool = False) -> Sequence[Job]:
        """See `Batch.load`. Running requests keep their slots: they are read again with new tensors, and go on with
        the adapter that they have when another comes.
        """
        lost: Sequence[Job] = ()
        if self._held is None:
            self._replace(weights, keep_kv)
        else:
            lost = self._put_beside(self._held, weights, version, lineage)
        self.version = version
        return lost

    def stage(self, tensors: Mapping[str, np.ndarray], seconds: float) -> bool:
        """Loads tensors beside those in use, for at least about so many seconds. Returns whether nothing is left to be
        done before `load`.
        """
        begin = time.time()
        done = all(self._engine.collective_rpc("stage_version", args=(tensors, seconds)))
        if self._trace is not None:
            self._trace("stage", begin, time.time(), {})
        return done

    def evict(self) -> Sequence[Job]:
        """See `Batch.evict`."""
        jobs = list(self._jobs.values())
        self._forget(list(self._jobs))
        return jobs

    def admit(self, jobs: Sequence[Job]) -> None:
        """See `Batch.admit`."""
        for job in jobs:
            prompt, params = continuation(job, stepwise=True, salt=self._salt)
            version = job.request.min_version if job.request.pinned else self.version
            name, inside = self._add(prompt, params, version)
            self._jobs[name], self._began[name], self._inside[name] = job, version, inside

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

    def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """See `Batch.score`. The running requests go on meanwhile."""
        check_no_routes(routes)
        name, _ = self._add(*probe(token_ids, self._salt), self.version)
        while True:
            for output in self._step():
                if output.request_id == name:
                    return scores(output.prompt_logprobs)

    def close(self) -> None:
        """See `Batch.close`."""
        self._engine.engine_core.shutdown()

    def _replace(self, tensors: Mapping[str, np.ndarray], keep_kv: bool) -> None:
        if keep_kv:
            self._salt += 1
        # engine_args may name a connector, which keeps KV of its own: one that can drop it (`sidecar.vllm.connectors`)
        elif not self._engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
            raise RuntimeError("vLLM's KV connector cannot drop the KV of older weights; choose another or none")
        self._engine.collective_rpc("load_version", args=(tensors,))
        self._read_again = set() if keep_kv else set(self._jobs)

    def _put_beside(
        self, held: HeldVersions[LoRARequest], adapter: LoRARequest, version: int, lineage: int
    ) -> list[Job]:
        """Puts an adapter beside the others, and returns who ran on one that is dropped. KV stays: vLLM knows whose."""
        began = {name: held[self._began[name]].lora_int_id for name in self._jobs}
        dropped = held.add(version, lineage, adapter)
        lost = [name for name, of in began.items() if of in {one.lora_int_id for one in dropped}]
        jobs = [self._jobs[name] for name in lost]
        self._forget(lost)
        for one in dropped:
            self._engine.remove_lora(one.lora_int_id)
            shutil.rmtree(one.lora_path, ignore_errors=True)
        self._engine.add_lora(held[version])
        return jobs

    def _add(self, prompt: Any, params: Any, version: int) -> tuple[str, str]:
        self._serial += 1
        adapter = None if self._held is None else self._held[version]
        name = str(self._serial)
        return name, self._engine.add_request(name, prompt, params, lora_request=adapter)

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            del self._jobs[name], self._began[name], self._inside[name]
        self._read_again.difference_update(names)
        self._engine.abort_request(list(names))

    def _step(self) -> Sequence[Any]:
        begin, before, what = time.time(), self.tokens_sampled, "reread" if self._read_again else "step"
        outputs = self._engine.step()
        for output in outputs:
            if output.request_id in self._jobs:
                self._take(output)
        self._read_again.difference_update(output.request_id for output in outputs)
        if self._trace is not None:
            self._trace(what, begin, time.time(), {"tokens": float(self.tokens_sampled - before)})
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
        version = self.version if self._held is None else self._began[output.request_id]
        if self._recorder is not None:
            self._take_routes(self._recorder, job, self._inside[output.request_id], len(tokens))
        job.extend(tokens, logprobs[: len(tokens)], version)
        self.tokens_sampled += len(tokens)
        if reason is None:
            return
        if output.finished:
            name = output.request_id
            del self._jobs[name], self._began[name], self._inside[name]
        else:
            self._forget([output.request_id])
        self._ended.append((job, reason))

    @staticmethod
    def _take_routes(recorder: RouteRecorder, job: Job, inside: str, sampled: int) -> None:
        """Takes the experts of the tokens that the step has read for the first time: with the first token those of the
        prompt, with any other that of the token before.
        """
        length = len(job.request.prompt_ids) + len(job.tokens)
        begin = length - 1 if job.tokens else 0
        job.extend_routes(recorder.read(inside, begin, length + sampled - 1), begin)
