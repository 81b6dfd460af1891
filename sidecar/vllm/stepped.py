"""vLLM in this process, stepped by a thread of ours: the small engine, for one device and for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from sidecar.channels.versions import PublishedVersion, receive
from sidecar.held import HeldVersions
from sidecar.protocol import EngineError, WeightUpdate
from sidecar.stepping.engine import SteppedEngine
from sidecar.stepping.jobs import Trace
from sidecar.vllm.adapters import AdapterDirectories
from sidecar.vllm.batch import VllmBatch
from sidecar.vllm.connectors import checked_config
from sidecar.vllm.routes import record_routes
from sidecar.vllm.settings import STAGE_SECONDS, VllmSettings
from sidecar.vllm.tokenizer import LazyTokenizer
from sidecar.vllm.weights import check_against_model, whole


class SteppedVllm(SteppedEngine):
    """Serves requests with vLLM's engine core in this process. Implements `sidecar.protocol.Engine`."""

    def __init__(self, engine: LLMEngine, settings: VllmSettings, name: str, trace: Trace | None = None) -> None:
        """Takes over an engine that holds no requests; ``trace`` is as of `SteppedEngine` and `VllmBatch`."""
        self._model = settings.model
        self._adapters = AdapterDirectories(settings.model, settings.rank) if settings.held else None
        held = HeldVersions[LoRARequest](settings.held) if settings.held else None
        recorder = record_routes(engine) if settings.record_routes else None
        self._batch = VllmBatch(engine, settings.slots, LazyTokenizer(settings.model), held, trace, recorder)
        self._stages = settings.stages
        super().__init__(
            self._batch,
            name=name,
            max_length=settings.max_length,
            vocab_size=engine.model_config.get_vocab_size(),
            has_tokenizer=True,
            receive=receive,
            held=settings.held,
            trace=trace,
        )

    async def close(self) -> None:
        """See `Engine.close`."""
        await super().close()
        if self._adapters is not None:
            self._adapters.close()

    def _place(self, published: PublishedVersion) -> Mapping[str, np.ndarray] | LoRARequest:
        if self._adapters is not None:
            return self._adapters.written(published)
        published = whole(published, self._model)
        check_against_model(published, self._model)
        return published.tensors

    def _load(self, update: WeightUpdate) -> Any:
        placed = super()._load(update)
        self._stage(placed)
        return placed

    def _stage(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Loads them beside those in use, between steps, where requests would stand still for all of it."""

        async def between_steps() -> None:
            while not await self._stepper.call(lambda _: self._batch.stage(tensors, STAGE_SECONDS)):
                pass

        if self._stages and self._batch.running:
            asyncio.run(between_steps())


def open_engine(*, name: str, settings: Mapping[str, Any], trace: Trace | None = None) -> SteppedVllm:
    """Starts vLLM here. ``VLLM_ENABLE_V1_MULTIPROCESSING=0`` must stand in the environment.

    Raises:
        EngineError: it cannot be stepped here.
    """
    how = VllmSettings(**settings)
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0" or how.tensor_parallel_size > 1:
        raise EngineError(
            f"{name}: sidecar.engine=vllm runs in one process on one device; for more set sidecar.engine=vllm_async"
        )
    arguments = how.arguments(on_cpu=current_platform.is_cpu(), stepped=True)
    engine = LLMEngine.from_vllm_config(checked_config(EngineArgs(**arguments)), disable_log_stats=True)
    return SteppedVllm(engine, how, name, trace)
