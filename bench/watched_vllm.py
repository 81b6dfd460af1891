"""Stepped vLLM engine with timers: when tokens appeared, and how long each part of an update took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sidecar.vllm.stepped import SteppedVllm, open_engine


class Watch:
    """Seconds since the last reading: of the parts of updates by name, and between two steps of running requests."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._gaps: list[float] = []
        self._last: float | None = None

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `function` so that its time is added under ``name``."""

        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin

        return call

    def stepped(self, batch: Any) -> Callable[[], Any]:
        """Wraps the batch's step; each call ends a gap between two tokens of a running request."""
        step = batch.step

        def call() -> Any:
            before = batch.tokens_sampled
            ended = step()
            if batch.tokens_sampled > before:
                now = time.perf_counter()
                if self._last is not None:
                    self._gaps.append(now - self._last)
                self._last = now if batch.running else None
            return ended

        return call

    def look(self) -> Mapping[str, float]:
        """Returns the times, for `EngineStatus.details`, and resets them."""
        seconds, gaps = self._seconds, self._gaps
        self._seconds, self._gaps = {}, []
        if not gaps:
            return seconds
        return {**seconds, "gaps": float(len(gaps)), "gap_seconds": sum(gaps), "largest_gap": max(gaps)}


def open_watched(*, name: str, settings: Mapping[str, Any]) -> SteppedVllm:
    """Opens an engine as `sidecar.vllm.stepped.open_engine` does, and times it."""
    engine, watch = open_engine(name=name, settings=settings), Watch()
    batch: Any = engine._stepper.batch
    batch.load, batch.step = watch.timed("load", batch.load), watch.stepped(batch)
    for attribute, part in (("_receive", "read"), ("_place", "check"), ("_stage", "stage")):
        setattr(engine, attribute, watch.timed(part, getattr(engine, attribute)))
    setattr(engine, "_details", watch.look)  # noqa: B010
    return engine
