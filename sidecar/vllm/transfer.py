"""Brings versions to the workers of ``AsyncLLM``: as files that they read, or from the learner, GPU to GPU; and of an
engine that holds several, as the adapters that requests name.
"""

from __future__ import annotations

import asyncio

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from sidecar.channels.nccl import WeightReceiver
from sidecar.channels.versions import VersionError, VersionGoneError, check_identity, receive
from sidecar.errors import first_line
from sidecar.protocol import WeightsGoneError, WeightUpdate, WeightUpdateError
from sidecar.vllm.adapters import AdapterDirectories
from sidecar.vllm.settings import STAGE_SECONDS, VllmSettings

LOOK_SECONDS = 0.02
"""Seconds between polls whether vLLM's workers have read a version: they answer calls, but make none."""


class VersionTransfer:
    """Transfers one version after the other. To be used on the event loop of vLLM."""

    def __init__(self, engine: AsyncLLM, settings: VllmSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._receiver: WeightReceiver | None = None
        self._adapters = AdapterDirectories(settings.model, settings.rank) if settings.held else None
        self._adapter: LoRARequest | None = None

    async def prepare(self, update: WeightUpdate) -> None:
        """Has the workers read and check a version while they generate, or reads an adapter here; of one that the
        learner sends, does nothing.

        Raises:
            WeightUpdateError: one of them cannot, and why.
        """
        if self._is_sent(update):
            return
        if self._adapters is not None:
            self._adapter = await asyncio.to_thread(_written, self._adapters, update)
            return
        arguments = (update.path, update.version, update.lineage)
        await self._engine.collective_rpc("prepare_version", args=arguments)
        while True:
            results = await self._engine.collective_rpc("prepared_version")
            if None not in results:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if wrong := next((result for result in results if result[0]), None):
            line, gone = wrong
            raise (WeightsGoneError if gone else WeightUpdateError)(line)

    async def stage(self) -> None:
        """Has the workers load the version that was prepared beside the one in use, a part between two steps."""
        staged = False
        while not staged:
            staged = all(await self._engine.collective_rpc("stage_prepared", args=(STAGE_SECONDS,)))

    async def load(self, update: WeightUpdate) -> None:
        """Loads the version that was prepared, or is sent. Not while a token is being sampled.

        Raises:
            WeightUpdateError: nothing was taken of it, and why. After anything else weights may be of two versions.
        """
        if not self._is_sent(update):
            await self._engine.collective_rpc("load_prepared", args=(update.version, update.lineage))
            return
        if self._receiver is None:
            from sidecar.vllm.nccl import AsyncTransferEngine

            receiver = AsyncTransferEngine(self._engine, asyncio.get_running_loop())
            self._receiver = WeightReceiver(receiver, workers=self._settings.tensor_parallel_size)
        try:
            await asyncio.to_thread(self._receiver.load, update.path)
        except VersionError as error:
            gone = isinstance(error, VersionGoneError)
            raise (WeightsGoneError if gone else WeightUpdateError)(str(error)) from error

    def taken(self) -> LoRARequest:
        """Returns the adapter that was prepared."""
        assert self._adapter is not None
        adapter, self._adapter = self._adapter, None
        return adapter

    def close(self) -> None:
        """Removes the adapters."""
        if self._adapters is not None:
            self._adapters.close()

    def _is_sent(self, update: WeightUpdate) -> bool:
        return self._settings.nccl and update.path.startswith("nccl://")


def _written(adapters: AdapterDirectories, update: WeightUpdate) -> LoRARequest:
    try:
        published = receive(update.path)
        check_identity(published, update.path, update.version, update.lineage)
        return adapters.written(published)
    except (VersionError, ValueError, OSError, RuntimeError) as error:
        refused = WeightsGoneError if isinstance(error, VersionGoneError) else WeightUpdateError
        raise refused(first_line(error)) from error
