"""Receives weights from the learner's GPU on vLLM's, by vLLM's own transfer engine. No GPU has run this yet.

vLLM's four calls of the life cycle are coroutines on its event loop; `sidecar.channels.nccl.WeightReceiver` calls them
from a thread, one after the other, while the learner sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from sidecar.channels.link import DEADLINE


class AsyncTransferEngine:
    """`sidecar.channels.nccl.TransferEngine` of an ``AsyncLLM``. Not to be called from the thread of its event loop."""

    def __init__(self, engine: AsyncLLM, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """See `TransferEngine.init_weight_transfer_engine`."""
        self._wait(self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)))

    def start_weight_update(self) -> None:
        """See `TransferEngine.start_weight_update`."""
        self._wait(self._engine.start_weight_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See `TransferEngine.update_weights`."""
        self._wait(self._engine.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """See `TransferEngine.finish_weight_update`. Ignores the label: the caller labels its engine itself."""
        self._wait(self._engine.finish_weight_update())

    def _wait(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(timeout=DEADLINE)
