"""Implements the engine's protocol around a `Batch`: validates requests, and calls the thread that steps."""

from __future__ import annotations

import abc
import asyncio
import functools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sidecar.channels.versions import PublishedVersion, Receiver, VersionError, VersionGoneError, check_identity
from sidecar.errors import first_line
from sidecar.protocol import (
    Completion,
    EngineError,
    EngineStatus,
    GenerateRequest,
    PauseMode,
    RequestError,
    WeightsGoneError,
    WeightUpdate,
    WeightUpdateError,
)
from sidecar.request_checks import check_policy, check_request, check_tokens
from sidecar.stepping.batch import Batch
from sidecar.stepping.jobs import Job, Trace
from sidecar.stepping.stepper import Call, Stepper

CLOSE_SECONDS = 120.0
"""Seconds that `close` waits for the step, or the compilation, that the engine is in."""


class SteppedEngine(abc.ABC):
    """Runs continuous batching in a thread of its own. Implements `sidecar.protocol.Engine`.

    It has no weights until the first `update_weights`; requests wait for them. Waits end with their cause, with
    `abort`, or with `close`; limits of time are the caller's.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        name: str,
        max_length: int,
        vocab_size: int,
        has_tokenizer: bool,
        receive: Receiver,
        held: int = 0,
        trace: Trace | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            batch: the batch to run.
            name: used in errors.
            max_length: longest prompt and response together, in tokens.
            vocab_size: token ids are below it.
            has_tokenizer: whether the batch can look for stop strings.
            receive: reads the versions that `update_weights` names.
            held: versions that the batch holds at once; 0: one, and none can be kept for a request.
            trace: called for every version that is read (``receive``), placed (``load``) and taken over (``swap``), and
                every ``score``.
        """
        self.name = name
        self._held = held
        self._max_length = max_length
        self._vocab_size = vocab_size
        self._has_tokenizer = has_tokenizer
        self._receive = receive
        self._update_lock = threading.Lock()
        self._trace = trace
        self._stepper = Stepper(batch, name, trace)

    @abc.abstractmethod
    def _place(self, published: PublishedVersion) -> Any:
        """Checks a version against the model and converts it for `Batch.load`, in parallel with generation.

        Raises:
            ValueError, OSError, RuntimeError: the version is not of this model, or memory has no room for it.
        """

    def _details(self) -> Mapping[str, float]:
        """Returns the gauges of this kind of engine."""
        return {}

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `Engine.generate`."""
        self._check(request)
        loop = asyncio.get_running_loop()
        job = Job(request, 0, loop, loop.create_future())
        self._stepper.submit_together(Call(functools.partial(self._stepper.add, job=job), loop, job.future))
        try:
            return await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    async def progress(self, request_id: str, seen: int) -> Completion:
        """See `Engine.progress`."""
        return await self._stepper.call(functools.partial(self._stepper.progress, request_id=request_id, seen=seen))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See `Engine.abort`."""
        ids = list(request_ids)
        await self._stepper.call(lambda _: self._stepper.abort(ids))

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """See `Engine.score`.

        Raises:
            RequestError: there are no tokens, too many, or some beyond the vocabulary.
            EngineError: the engine died or was closed.
        """
        tokens = check_tokens("score", token_ids, self._max_length, self._vocab_size)
        return await self._stepper.call(functools.partial(self._stepper.score, token_ids=tokens, routes=routes))

    async def update_weights(self, update: WeightUpdate) -> None:
        """See `Engine.update_weights`. Generation goes on while the version is read, checked and placed.

        Raises:
            WeightUpdateError: nothing changed; the engine keeps its version.
            EngineError: the engine died or was closed.
        """
        check_policy(update, self._held, self.name)
        loop = asyncio.get_running_loop()
        swapped = loop.create_future()
        await asyncio.to_thread(self._load_and_swap, update, loop, swapped)
        await swapped

    async def pause(self, mode: PauseMode) -> None:
        """See `Engine.pause`. ``abort`` also ends the requests that wait, with no tokens."""
        await self._stepper.call(functools.partial(self._stepper.pause, mode=mode))

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._stepper.call(lambda _: self._stepper.resume())

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        stepper, batch = self._stepper, self._stepper.batch
        running = batch.running
        return EngineStatus(
            version=batch.version,
            lineage=stepper.lineage,
            running=running,
            waiting=max(0, stepper.in_flight - running),
            slots=batch.slots,
            paused=stepper.paused,
            busy_seconds=stepper.busy_seconds,
            tokens=batch.tokens_sampled,
            details={"updates": float(stepper.updates), **self._details()},
        )

    async def close(self) -> None:
        """See `Engine.close`. Closing twice, or a dead engine, is no error.

        Raises:
            EngineError: the thread did not end within `CLOSE_SECONDS`.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._stepper.call(self._stepper.close)
        except EngineError:
            pass
        except TimeoutError:
            raise EngineError(
                f"{self.name} did not end within {CLOSE_SECONDS:.0f} s; it hangs in a computation"
            ) from None
        await asyncio.to_thread(self._stepper.thread.join, CLOSE_SECONDS)

    def _check(self, request: GenerateRequest) -> None:
        check_request(request, self._max_length, self._vocab_size)
        if request.sampling.stop_strings and not self._has_tokenizer:
            raise RequestError(f"request {request.id}: stop strings need a tokenizer, and {self.name} was given none")

    def _withdraw(self, job: Job) -> None:
        nobodys = job.loop.create_future()
        nobodys.cancel()  # whatever becomes of it
        self._stepper.submit_together(Call(lambda _: self._stepper.forget(job), job.loop, nobodys))

    def _load_and_swap(
        self, update: WeightUpdate, loop: asyncio.AbstractEventLoop, swapped: asyncio.Future[None]
    ) -> None:
        # one update at a time, so that they take effect in the order in which they were read
        with self._update_lock:
            weights = self._load(update)
            swap = functools.partial(
                self._stepper.update,
                weights=weights,
                version=update.version,
                lineage=update.lineage,
                policy=update.policy,
            )
            self._stepper.submit(Call(swap, loop, swapped))

    def _load(self, update: WeightUpdate) -> Any:
        try:
            begin = time.time()
            published = self._receive(update.path)
            check_identity(published, update.path, update.version, update.lineage)
            read = time.time()
            placed = self._place(published)
            if self._trace is not None:
                self._trace("receive", begin, read, {"version": float(update.version)})
                self._trace("load", read, time.time(), {"version": float(update.version)})
            return placed
        except (VersionError, ValueError, OSError, MemoryError, RuntimeError) as error:
            refused = WeightsGoneError if isinstance(error, VersionGoneError) else WeightUpdateError
            raise refused(
                f"{self.name} did not load version {update.version} of lineage {update.lineage} and keeps version "
                f"{self._stepper.batch.version}: {first_line(error)}"
            ) from error
