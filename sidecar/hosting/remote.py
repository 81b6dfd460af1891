"""Calls an engine elsewhere, over any transport that carries a method's name, its arguments and its result."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from sidecar.protocol import Completion, EngineStatus, GenerateRequest, PauseMode, WeightUpdate


class RemoteEngine(abc.ABC):
    """Forwards the methods of `sidecar.protocol.Engine`, all but `Engine.close`, to another process."""

    @abc.abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any:
        """Returns the result of the engine's method. Cancelling the call cancels the method.

        Raises:
            EngineError: the engine's process is gone.
            Exception: what the method raised, of the protocol's kinds.
        """

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `Engine.generate`."""
        done: Completion = await self._call("generate", request)
        return done

    async def progress(self, request_id: str, seen: int) -> Completion:
        """See `Engine.progress`."""
        made: Completion = await self._call("progress", request_id, seen)
        return made

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See `Engine.abort`."""
        await self._call("abort", list(request_ids))

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """See `Engine.score`."""
        scores: np.ndarray = await self._call("score", np.asarray(token_ids), routes)
        return scores

    async def update_weights(self, update: WeightUpdate) -> None:
        """See `Engine.update_weights`. The path is read where the engine is."""
        await self._call("update_weights", update)

    async def pause(self, mode: PauseMode) -> None:
        """See `Engine.pause`."""
        await self._call("pause", mode)

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._call("resume")

    async def status(self) -> EngineStatus:
        """See `Engine.status`."""
        status: EngineStatus = await self._call("status")
        return status
