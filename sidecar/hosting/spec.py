"""Specification of an engine that runs in a process of its own, and the launcher that starts such processes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sidecar.garbage import uncollected_imports
from sidecar.protocol import Engine
from sidecar.spans import SpanFile


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Specification of an engine that is not started yet, in plain data.

    Attributes:
        name: used in errors and logs; unique among the engines of an explorer.
        index: its number among them, from 0.
        factory: ``module:function`` that opens it, called in the engine's process with ``name`` and ``arguments``.
        arguments: plain data.
        environment: variables of its process, set before anything is imported there.
        accelerators: GPUs or TPU chips that it takes; 0 for an engine on the CPU.
        cores: CPU cores that it is pinned to; empty for any.
        log: file that takes what it prints; empty for nowhere.
        trace: arguments of the `SpanFile` that takes what it does when; empty for none.
    """

    name: str
    index: int
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    accelerators: int = 0
    cores: tuple[int, ...] = ()
    log: str = ""
    trace: Mapping[str, Any] = field(default_factory=dict)

    def spans(self) -> SpanFile | None:
        """Returns the file for `open`, to be closed after the engine; None where nothing is traced."""
        return SpanFile(**self.trace) if self.trace else None

    def open(self, spans: SpanFile | None) -> Engine:
        """Opens the engine, in this process. May take minutes.

        Args:
            spans: takes what the engine does when.

        Raises:
            EngineError: it cannot be opened here; one line says why and what to do.
        """
        if self.cores:
            # Linux pins threads: this one, from which the engine's inherit, and the one that answers calls.
            os.sched_setaffinity(0, self.cores)
            os.sched_setaffinity(os.getpid(), self.cores)
        module, _, function = self.factory.partition(":")
        with uncollected_imports():
            factory = getattr(importlib.import_module(module), function)
        traced = {} if spans is None else {"trace": spans}
        engine: Engine = factory(name=self.name, **self.arguments, **traced)
        return engine


class EngineLauncher(Protocol):
    """Starts engines in processes of their own: on this machine, or on a Ray cluster."""

    async def start(self, spec: EngineSpec) -> Engine:
        """Starts a process with this engine and returns an engine that calls it. Its death is an `EngineError` of every
        call; `Engine.close` ends the process.

        Raises:
            EngineError: it did not start; the line says why and what to do.
        """
        ...

    def platform(self, index: int) -> str | None:
        """Returns the platform of engine number ``index``: ``cpu``, ``gpu`` or ``tpu``; None where its spec decides."""
        ...

    def close(self) -> None:
        """Ends whatever is left of what this launcher started, and nothing else."""
        ...
