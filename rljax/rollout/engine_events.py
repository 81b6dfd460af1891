"""Events of engines: the interface by which an engine pool reports faults and successors to its owner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from rljax.ledger.announced import Announced
from sidecar.protocol import Completion, Engine, GenerateRequest

log = logging.getLogger(__name__)

Answered = Callable[[int, GenerateRequest, float, Completion], None]
"""Takes the index of an engine, a request, when the engine was given it (Unix seconds), and what came back."""


class EngineEvents(Protocol):
    """Receives the events of the engines of one pool."""

    def fault(self, kind: str, message: str) -> None:
        """Reports a fault that the pool survives; ``kind`` is the word for it. Does not block."""
        ...

    async def loaded(self, successor: Engine, serving: Announced) -> None:
        """Checks a successor that has loaded the version that the pool serves, before it gets a request. Raises where
        the successor must not serve.
        """
        ...


class FaultLog:
    """Logs faults and accepts every engine. Implements `EngineEvents`."""

    def fault(self, kind: str, message: str) -> None:
        """Implements `EngineEvents.fault`."""
        log.warning("%s: %s", kind, message)

    async def loaded(self, successor: Engine, serving: Announced) -> None:
        """Implements `EngineEvents.loaded`: there is nothing to compare the successor with."""
