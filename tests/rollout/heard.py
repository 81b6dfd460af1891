"""Engine events for a test that wants to hear of faults, or of none."""

from __future__ import annotations

from collections.abc import Callable

from rljax.ledger.versions import Announced
from sidecar.protocol import Engine


class Heard:
    """Hands faults on and takes every engine as it is. Implements `rljax.rollout.engine_events.EngineEvents`."""

    def __init__(self, note: Callable[[str, str], object] = lambda kind, message: None) -> None:
        self.fault = note

    async def loaded(self, successor: Engine, serving: Announced) -> None:
        """There is nothing to compare it with."""
