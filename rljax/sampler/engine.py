"""The embedded engine: `sidecar.protocol.Engine` in this process, in JAX, on whatever device there is."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Sequence

import jax
import numpy as np

from rljax.models.architecture import Architecture
from rljax.models.hf_names import check_tensors
from rljax.models.transformer import Params
from rljax.sampler import programs
from rljax.sampler.batch import RunningBatch, Trace
from rljax.sampler.requests import Job, Tokenizer
from rljax.sampler.worker import Call, Worker
from sidecar.protocol import (
    Completion,
    EngineError,
    EngineStatus,
    GenerateRequest,
    PauseMode,
    RequestError,
    WeightUpdate,
    WeightUpdateError,
)
from sidecar.versions import Receiver, VersionError, read_version

CLOSE_SECONDS = 120.0
"""Seconds that `close` waits for the step, or the compilation, that the engine is in."""


class EmbeddedEngine:
    """Continuous batching over slots, in a thread of its own. Implements `sidecar.protocol.Engine`.

    It has no weights until the first `update_weights`; requests wait for them. Waits end with their cause, with
    `abort`, or with `close`; limits of time are the caller's.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        slots: int,
        max_length: int,
        decode_steps: int,
        dtype: jax.typing.DTypeLike,
        tokenizer: Tokenizer | None = None,
        device: jax.Device | None = None,
        name: str = "engine-0",
        receive: Receiver = read_version,
        trace: Trace | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            architecture: of the model whose versions will be loaded.
            slots: requests that run at once.
            max_length: longest prompt and response together, in tokens.
            decode_steps: tokens sampled between two looks at the queue.
            dtype: of the computation and the cache, float32 or bfloat16.
            tokenizer: decodes for stop strings; without one they are refused.
            device: where to compute; None for JAX's default.
            name: stands in errors.
            receive: reads the versions that `update_weights` names.
            trace: hears of every ``prefill``, ``decode`` and ``load``; called from several threads.
        """
        if slots < 1 or max_length < 2 or decode_steps < 1:
            raise ValueError(f"{name}: slots {slots}, max_length {max_length}, decode_steps {decode_steps}: too small")
        self.name = name
        self._architecture = architecture
        self._max_length = max_length
        self._dtype = np.dtype(dtype).name
        self._device = device or jax.local_devices()[0]
        self._tokenizer = tokenizer
        self._receive = receive
        self._trace = trace
        self._update_lock = threading.Lock()
        batch = RunningBatch(
            architecture,
            slots=slots,
            max_length=max_length,
            decode_steps=decode_steps,
            dtype=self._dtype,
            device=self._device,
            tokenizer=tokenizer,
            trace=trace,
        )
        self._worker = Worker(batch, name)

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `Engine.generate`."""
        self._check(request)
        loop = asyncio.get_running_loop()
        job = Job(request, 0, loop, loop.create_future())
        self._worker.submit(Call(functools.partial(self._worker.add, job=job), loop, job.future))
        try:
            return await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See `Engine.abort`."""
        ids = list(request_ids)
        await self._worker.call(lambda _: self._worker.abort(ids))

    async def score(self, token_ids: np.ndarray) -> np.ndarray:
        """See `Engine.score`.

        Raises:
            RequestError: there are no tokens, too many, or some beyond the vocabulary.
            EngineError: the engine died or was closed.
        """
        tokens = self._tokens("score", token_ids)
        if len(tokens) > self._max_length:
            raise RequestError(f"score: {len(tokens)} tokens exceed the engine's context of {self._max_length}")
        return await self._worker.call(functools.partial(self._worker.score, token_ids=tokens))

    async def update_weights(self, update: WeightUpdate) -> None:
        """See `Engine.update_weights`. Generation goes on while the version is read, checked and placed.

        Raises:
            WeightUpdateError: nothing changed; the engine keeps its version.
            EngineError: the engine died or was closed.
        """
        loop = asyncio.get_running_loop()
        swapped = loop.create_future()
        await asyncio.to_thread(self._load_and_swap, update, loop, swapped)
        await swapped

    async def pause(self, mode: PauseMode) -> None:
        """See `Engine.pause`. ``abort`` also ends the requests that wait, with no tokens."""
        await self._worker.call(functools.partial(self._worker.pause, mode=mode))

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._worker.call(lambda _: self._worker.resume())

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        worker, batch = self._worker, self._worker.batch
        running = batch.running
        slots, length = batch.cache_shape
        return EngineStatus(
            version=batch.version,
            lineage=worker.lineage,
            running=running,
            waiting=max(0, worker.in_flight - running),
            slots=batch.slots,
            paused=worker.paused,
            busy_seconds=worker.busy_seconds,
            tokens=batch.tokens_sampled,
            details={
                "cache_slots": float(slots),
                "cache_length": float(length),
                "prefilled_tokens": float(batch.tokens_prefilled),
                "updates": float(worker.updates),
            },
        )

    async def close(self) -> None:
        """See `Engine.close`. Closing twice, or a dead engine, is no error.

        Raises:
            EngineError: the thread did not end within `CLOSE_SECONDS`.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._worker.call(self._worker.close)
        except EngineError:
            pass
        except TimeoutError:
            raise EngineError(
                f"{self.name} did not end within {CLOSE_SECONDS:.0f} s; it hangs in a computation"
            ) from None
        await asyncio.to_thread(self._worker.thread.join, CLOSE_SECONDS)

    def _check(self, request: GenerateRequest) -> None:
        prompt = self._tokens(f"request {request.id}", request.prompt_ids)
        total = len(prompt) + request.sampling.max_new_tokens
        if total > self._max_length:
            raise RequestError(
                f"request {request.id}: {len(prompt)} prompt tokens and {request.sampling.max_new_tokens} new ones "
                f"exceed the engine's context of {self._max_length}; shorten the prompt or the budget"
            )
        if not 0 <= request.resumed_tokens <= len(prompt):
            raise RequestError(f"request {request.id}: {request.resumed_tokens} of {len(prompt)} tokens are resumed")
        if request.sampling.stop_strings and self._tokenizer is None:
            raise RequestError(f"request {request.id}: stop strings need a tokenizer, and {self.name} was given none")
        if "" in request.sampling.stop_strings:
            raise RequestError(f"request {request.id}: a stop string is empty")

    def _tokens(self, what: str, token_ids: np.ndarray) -> np.ndarray:
        tokens = np.asarray(token_ids, np.int32)
        if tokens.ndim != 1 or not len(tokens):
            raise RequestError(f"{what}: there must be one sequence of at least one token, not {list(tokens.shape)}")
        if tokens.min() < 0 or tokens.max() >= self._architecture.vocab_size:
            raise RequestError(f"{what}: token ids must lie within the vocabulary of {self._architecture.vocab_size}")
        return tokens

    def _withdraw(self, job: Job) -> None:
        try:
            self._worker.submit(Call(lambda _: self._worker.forget(job), job.loop, job.loop.create_future()))
        except EngineError:
            return  # it ended, and the request with it

    def _load_and_swap(
        self, update: WeightUpdate, loop: asyncio.AbstractEventLoop, swapped: asyncio.Future[None]
    ) -> None:
        # one update at a time, so that they take effect in the order in which they were read
        with self._update_lock:
            params = self._load(update)
            swap = functools.partial(self._worker.swap, params, update.version, update.lineage)
            self._worker.submit(Call(lambda _: swap(), loop, swapped))

    def _load(self, update: WeightUpdate) -> Params:
        start = time.time()
        try:
            published = self._receive(update.path)
            manifest = published.manifest
            if (manifest.version, manifest.lineage) != (update.version, update.lineage):
                raise VersionError(f"{update.path} holds version {manifest.version} of lineage {manifest.lineage}")
            check_tensors(published.tensors, self._architecture)
            tensors = jax.device_put(dict(published.tensors), self._device)
            params = programs.place(tensors, architecture=self._architecture, dtype=self._dtype)
            jax.block_until_ready(params)
        except (VersionError, ValueError, OSError, MemoryError, jax.errors.JaxRuntimeError) as error:
            raise WeightUpdateError(
                f"{self.name} did not load version {update.version} of lineage {update.lineage} and keeps version "
                f"{self._worker.batch.version}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
        if self._trace is not None:
            self._trace("load", start, time.time(), {"version": float(update.version)})
        return params
