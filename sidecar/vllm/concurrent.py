"""vLLM's own concurrent engine, ``AsyncLLM``, whose core runs in processes of its own: the engine for accelerators.

It lives on an event loop in a thread, so that every method may be called from any loop, as the protocol says.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from sidecar.errors import first_line
from sidecar.held import HeldVersions
from sidecar.protocol import (
    NOTHING,
    Completion,
    EngineError,
    EngineStatus,
    EngineUnfitError,
    GenerateRequest,
    PauseMode,
    PinnedVersionError,
    UpdatePolicy,
    WeightUpdate,
    WeightUpdateError,
)
from sidecar.request_checks import check_policy, check_request, check_tokens
from sidecar.stepping.jobs import Job, Trace, end_of_text
from sidecar.stepping.waiting import WaitingLine
from sidecar.vllm.connectors import checked_config
from sidecar.vllm.running import Running
from sidecar.vllm.sampling import check_no_routes, continuation, probe, sampled_logprobs, scores
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.tokenizer import LazyTokenizer
from sidecar.vllm.transfer import VersionTransfer

Pause = Literal["abort", "wait", "keep"]
"""vLLM's names of pause modes, which are ours."""
T = TypeVar("T")


class ConcurrentVllm:
    """Serves requests with ``AsyncLLM``. Implements `sidecar.protocol.Engine`."""

    def __init__(self, settings: VllmSettings, name: str, trace: Trace | None = None) -> None:
        """Starts vLLM, and waits for it. ``trace`` takes ``receive``: a version is read and staged; ``swap``: it is in
        use.

        Raises:
            Exception: whatever vLLM raises when it cannot start.
        """
        self.name = name
        self._trace = trace
        self._settings = settings
        self._tokenizer = LazyTokenizer(settings.model)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._engine = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        self._vocab_size = self._engine.model_config.get_vocab_size()
        self._requests: set[Running] = set()
        self._line = WaitingLine()
        self._arrivals = 0
        self._handed_over = 0
        self._ended = asyncio.Event()
        self._version, self._lineage, self._paused, self._closed = -1, -1, False, False
        self._may_start = asyncio.Condition()
        self._updating = asyncio.Lock()
        self._serial = 0
        self._salt = 0  # of what may share KV: counts the updates at which running requests kept theirs
        self._transfer = VersionTransfer(self._engine, settings)
        self._held = HeldVersions[LoRARequest](settings.held) if settings.held else None
        self._dropped: list[str] = []
        self._tokens, self._updates = 0, 0
        self._busy, self._busy_since = 0.0, 0.0

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `Engine.generate`."""
        check_request(request, self._settings.max_length, self._vocab_size)
        return await self._on_loop(self._generate(request))

    async def progress(self, request_id: str, seen: int) -> Completion:
        """See `Engine.progress`. Each token is said to be of the version of now: only the last output tells more."""
        return await self._on_loop(self._progress(request_id, seen))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See `Engine.abort`."""
        await self._on_loop(self._abort(lambda running: running.job.request.id in set(request_ids)))

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """See `Engine.score`. While the engine is paused it waits."""
        check_no_routes(routes)
        tokens = check_tokens("score", token_ids, self._settings.max_length, self._vocab_size)
        return await self._on_loop(self._score(tokens))

    async def update_weights(self, update: WeightUpdate) -> None:
        """See `Engine.update_weights`. Generation goes on while the workers read and check the version.

        Raises:
            WeightUpdateError: nothing changed; the engine keeps its version.
            EngineError: it failed in the middle of loading, and is dead now.
        """
        check_policy(update, self._settings.held, self.name)
        await self._on_loop(self._update(update))

    async def pause(self, mode: PauseMode) -> None:
        """See `Engine.pause`."""
        await self._on_loop(self._pause(mode))

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._on_loop(self._resume())

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        if self._closed or self._engine.errored:
            raise EngineError(f"{self.name} is {'closed' if self._closed else 'dead'}")
        running = self._handed_over
        busy = self._busy + (time.perf_counter() - self._busy_since if running else 0.0)
        return EngineStatus(
            version=self._version,
            lineage=self._lineage,
            running=running,
            waiting=max(0, len(self._requests) - running),
            slots=self._settings.slots,
            paused=self._paused,
            busy_seconds=busy,
            tokens=self._tokens,
            details={"updates": float(self._updates)},
        )

    async def close(self) -> None:
        """See `Engine.close`."""
        if not self._closed:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), self._loop))
            await asyncio.to_thread(self._engine.shutdown)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._transfer.close()

    async def _open(self) -> AsyncLLM:
        arguments = AsyncEngineArgs(**self._settings.arguments(on_cpu=current_platform.is_cpu()))
        config, logs = checked_config(arguments), arguments.enable_log_requests
        engine = AsyncLLM.from_vllm_config(config, enable_log_requests=logs, disable_log_stats=True)
        # What vLLM asks its core once, before it registers the first request. Later nothing is awaited between the slot
        # that a request takes and its registration: no abort falls in between, and is lost on one unknown to vLLM.
        await engine.get_supported_tasks()
        return engine

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise EngineError(f"{self.name} was closed")
        answer = asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)
        try:
            return await asyncio.wrap_future(answer)
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineError(f"{self.name} died: {first_line(error)}") from error

    # What follows runs on the loop of vLLM.

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result, or raises EngineError once the engine ends: vLLM tells nobody that it was shut down."""
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise EngineError(f"{self.name} was closed")
            return task.result()
        finally:
            task.cancel()
            ended.cancel()

    async def _end(self) -> None:
        self._closed = True
        self._ended.set()

    async def _generate(self, request: GenerateRequest) -> Completion:
        loop = asyncio.get_running_loop()
        self._arrivals += 1
        running = Running(Job(request, self._arrivals, loop, loop.create_future()))
        self._requests.add(running)
        self._line.push([running.job])
        try:
            return running.job.completion(await self._run(running))
        finally:
            running.job.done = True  # where it still waits, those behind it are next
            running.tell()
            self._requests.discard(running)
            await self._leave_slot(running)

    async def _run(self, running: Running) -> str:
        """Samples to the end of the request; returns why it ended."""
        job = running.job
        async with self._may_start:
            await self._may_start.wait_for(lambda: running.aborted or self._has_room(job))
            if running.aborted:
                return "abort"
            self._take_slot(running)
            self._may_start.notify_all()  # there may be room for the next one, too
        stops = job.request.sampling.stop_strings
        prompt, params = continuation(job, stepwise=bool(stops) or job.request.followed, salt=self._salt)
        tokens: list[int] = []
        logprobs: list[float] = []
        end: int | None = None
        async for output in self._engine.generate(prompt, params, running.name, lora_request=running.adapter):
            sampled = output.outputs[0]
            old = len(tokens)
            tokens += sampled.token_ids
            logprobs += sampled_logprobs(sampled.logprobs)
            if stops and end is None and len(tokens) > old:
                resumed = job.resumed()
                end = end_of_text(resumed + tokens, len(resumed) + old, stops, self._tokenizer)
                if end is not None:
                    end -= len(resumed)
                    await self._engine.abort(running.name)  # its last output follows, with the versions
            running.tokens, running.logprobs = (tokens, logprobs) if end is None else (tokens[:end], logprobs[:end])
            running.tell()
            if output.finished:
                self._tokens += len(tokens[:end])
                if self._settings.record_routes and tokens and sampled.routed_experts is None:
                    aborted = sampled.finish_reason == "abort"  # it may have ended before its first were due
                    raise (EngineError if aborted else EngineUnfitError)(
                        f"{self.name}: vLLM returned tokens without their experts, so that none can be replayed; write "
                        "another sidecar.engine, or algorithm.router_replay=off"
                    )
                running.take(tokens[:end], logprobs[:end], sampled)
                return "stop" if end is not None else str(sampled.finish_reason)
        raise EngineError(f"{self.name}: request {job.request.id} was left without an end")

    async def _progress(self, request_id: str, seen: int) -> Completion:
        running = next((one for one in self._requests if one.job.request.id == request_id), None)
        if running is None:
            return NOTHING
        while len(running.tokens) <= seen and not running.job.done:
            await running.more.wait()
        tokens, logprobs = running.tokens[seen:], running.logprobs[seen:]
        versions = np.full(len(tokens), self._version if self._held is None else running.version, np.int32)
        return Completion(np.asarray(tokens, np.int32), np.asarray(logprobs, np.float32), versions, "abort")

    def _has_room(self, job: Job) -> bool:
        free = self._handed_over < self._settings.slots
        return free and not self._paused and self._line.first(self._version) is job

    def _take_slot(self, running: Running) -> None:
        request = running.job.request
        if not self._handed_over:
            self._busy_since = time.perf_counter()
        self._line.take(1, self._version)
        self._handed_over += 1
        self._serial += 1
        running.name = str(self._serial)
        running.version = request.min_version if request.pinned else self._version
        if running.version not in ((self._version,) if self._held is None else self._held):
            raise PinnedVersionError.of(request, self.name)
        running.adapter = None if self._held is None else self._held[running.version]

    async def _leave_slot(self, running: Running) -> None:
        if running.name:
            self._handed_over -= 1
            if not self._handed_over:
                self._busy += time.perf_counter() - self._busy_since
        async with self._may_start:
            self._may_start.notify_all()

    async def _abort(self, chosen: Callable[[Running], bool]) -> None:
        ending = [running for running in self._requests if chosen(running)]
        for running in ending:
            running.aborted = True
            running.job.done = not running.name
        await self._engine.abort([running.name for running in ending if running.name])
        async with self._may_start:
            self._may_start.notify_all()

    async def _score(self, tokens: np.ndarray) -> np.ndarray:
        async with self._may_start:
            await self._may_start.wait_for(lambda: not self._paused and self._version >= 0)
        self._serial += 1
        prompt, params = probe(tokens, self._salt)
        adapter = None if self._held is None else self._held[self._version]
        async for output in self._engine.generate(prompt, params, str(self._serial), lora_request=adapter):
            if output.finished:
                return scores(output.prompt_logprobs)
        raise EngineError(f"{self.name}: scoring was ended from outside")

    async def _pause(self, mode: PauseMode) -> None:
        async with self._updating:  # an update pauses and resumes, too
            self._paused = True
            if mode is PauseMode.ABORT:
                await self._abort(lambda running: True)
            await self._engine.pause_generation(mode=cast(Pause, mode.value), clear_cache=False)

    async def _resume(self) -> None:
        async with self._updating:
            await self._resume_generation()

    async def _resume_generation(self) -> None:
        self._paused = False
        await self._engine.resume_generation()
        async with self._may_start:
            self._may_start.notify_all()

    async def _update(self, update: WeightUpdate) -> None:
        async with self._updating:
            try:
                begin = time.time()
                await self._transfer.prepare(update)
                if self._settings.stages and self._handed_over:
                    await self._transfer.stage()
                read = time.time()
                await self._load(update)
                if self._trace is not None:
                    self._trace("receive", begin, read, {"version": float(update.version)})
                    self._trace("swap", read, time.time(), {"version": float(update.version)})
            except WeightUpdateError as error:
                what = f"version {update.version} of lineage {update.lineage} and keeps version {self._version}"
                raise type(error)(f"{self.name} did not load {what}: {error}") from error

    async def _load(self, update: WeightUpdate) -> None:
        try:
            # Rolled back: what asked for newer weights is of a lost lineage, and cannot go on with these.
            await self._abort(lambda running: running.job.request.min_version > update.version)
            if self._held is not None:
                await self._put_beside(self._held, update)
                return
            async with self._paused_generation(update):
                await self._transfer.load(update)
                await self._engine.update_weight_version(str(update.version))
                self._serve(update)
        except WeightUpdateError:
            raise
        except BaseException:
            await self._end()  # its weights may be of two versions: it must not sample any more
            self._engine.shutdown()
            raise

    def _serve(self, update: WeightUpdate) -> None:
        self._salt += update.policy is UpdatePolicy.KEEP_KV
        self._version, self._lineage = update.version, update.lineage
        self._line.version_changed()
        self._updates += 1

    async def _put_beside(self, held: HeldVersions[LoRARequest], update: WeightUpdate) -> None:
        """Puts an adapter beside the others, while requests go on with theirs. KV stays: vLLM knows whose it is."""
        dropped = held.add(update.version, update.lineage, self._transfer.taken())
        self._serve(update)  # who begins now may name the new one: vLLM reads what it does not have yet
        gone = {one.lora_int_id for one in dropped}
        await self._abort(lambda running: running.adapter is not None and running.adapter.lora_int_id in gone)
        for path in self._dropped:
            shutil.rmtree(path, ignore_errors=True)
        self._dropped = [one.lora_path for one in dropped]  # a score under way may have it read once more
        for one in dropped:
            await self._engine.remove_lora(one.lora_int_id)
        await self._engine.add_lora(held[update.version])
        async with self._may_start:
            self._may_start.notify_all()

    @contextlib.asynccontextmanager
    async def _paused_generation(self, update: WeightUpdate) -> AsyncIterator[None]:
        """Pauses sampling while the context is open; afterwards only those that keep it have KV of older weights."""
        was_paused, policy = self._paused, update.policy
        if policy is UpdatePolicy.ABORT:
            await self._abort(lambda running: bool(running.name))
        self._paused = True  # no request may start meanwhile
        mode = PauseMode.WAIT if policy is UpdatePolicy.DRAIN and not was_paused else PauseMode.KEEP
        # Here KV is dropped: vLLM's core empties its prefix cache, and a connector's, and puts what runs back into the
        # line without its KV (`EngineCore._reset_caches`); after `resume_generation` it is read again.
        rolled_back = update.version < self._version or update.lineage != self._lineage
        drop_kv = rolled_back or policy is not UpdatePolicy.KEEP_KV
        await self._engine.pause_generation(mode=cast(Pause, mode.value), clear_cache=drop_kv)
        refused = None
        try:
            yield
        except WeightUpdateError as error:  # after anything else there is nothing to resume
            refused = error
        self._paused = was_paused
        if not was_paused:
            await self._resume_generation()
        if refused is not None:
            raise refused


def open_engine(*, name: str, settings: Mapping[str, Any], trace: Trace | None = None) -> ConcurrentVllm:
    """Starts ``AsyncLLM``.

    Raises:
        Exception: whatever vLLM raises when it cannot start.
    """
    return ConcurrentVllm(VllmSettings(**settings), name, trace)
