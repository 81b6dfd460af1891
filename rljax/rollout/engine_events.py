"""What happens to engines, and who hears of it: slots tell their pool, the pool tells whoever has it."""

from __future__ import annotations

import logging
from typing import Protocol

from rljax.ledger.versions import Announced
from sidecar.protocol import Engine

log = logging.getLogger(__name__)


class EngineEvents(Protocol):
    """Hears of the engines of one pool."""

    def fault(self, kind: str, message: str) -> None:
        """Something went wrong that the pool survives; ``kind`` is the word for it. Holds nobody up."""
        ...

    async def loaded(self, successor: Engine, serving: Announced) -> None:
        """An engine that takes another's place has loaded what the pool serves, and waits for this before it gets a
        request. Raises where it is no good.
        """
        ...


class FaultLog:
    """Logs what goes wrong, and takes every engine as it is. Implements `EngineEvents`."""

    def fault(self, kind: str, message: str) -> None:
        """See `EngineEvents.fault`."""
        log.warning("%s: %s", kind, message)

    async def loaded(self, successor: Engine, serving: Announced) -> None:
        """See `EngineEvents.loaded`: there is nothing to compare it with."""
