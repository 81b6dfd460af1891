"""Runs engines as actors of a Ray cluster. `RayEngineLauncher` starts them in a placement group that has room for them.

Ray carries plain data only: what goes wrong in an actor comes back as `Failure`, never as a pickled exception. An actor
is not restarted by Ray: the engine pool knows which version the restarted engine has to load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sidecar.diagnosis import one_line, read_from, size_of
from sidecar.errors import first_line
from sidecar.failpoints import failpoint
from sidecar.hosting.remote import RemoteEngine
from sidecar.hosting.spec import EngineSpec
from sidecar.protocol import (
    Engine,
    EngineError,
    EngineUnfitError,
    PinnedVersionError,
    RequestError,
    WeightsGoneError,
    WeightUpdateError,
)
from sidecar.workers.child_process import redirect_output
from sidecar.workers.lifeline import end_group_with_process

CALLS_AT_ONCE = 100_000
"""Calls that an actor takes at the same time: so many that no control call ever waits behind generation."""
END_SECONDS = 30.0
"""Seconds that an engine has to end by itself before its process is killed."""
VISIBLE_DEVICES = {"GPU": "CUDA_VISIBLE_DEVICES", "TPU": "TPU_VISIBLE_CHIPS"}
"""Environment variable that lists the accelerators visible to a process, by Ray's name of the resource."""
LEFT_ALONE = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS": "1",
}
"""Variables by which Ray leaves `VISIBLE_DEVICES` unset, since we set them."""

_KINDS: tuple[type[Exception], ...] = (
    EngineError,
    EngineUnfitError,
    RequestError,
    PinnedVersionError,
    WeightUpdateError,
    WeightsGoneError,
)
_ERRORS = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the protocol as plain data: the name of its class, and its message."""

    kind: str
    line: str

    @classmethod
    def of(cls, error: Exception, where: str) -> Failure:
        """Converts an error for the caller; one that the protocol does not know means that the engine cannot serve."""
        if type(error).__name__ in _ERRORS:
            return cls(type(error).__name__, str(error))
        return cls(EngineError.__name__, f"{where}: {type(error).__name__}: {first_line(error)}")


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    """Resources of the cluster that one engine takes.

    Attributes:
        bundle: its place in the placement group.
        cpus: CPUs in it.
        accelerator: ``GPU``, ``TPU``, or empty for none.
        accelerators: how many of them.
        resources: custom resources, by name.
        devices: which of its node's accelerators, counted from 0; None leaves that to Ray.
        swap: accelerators by name as Ray knows them: instead of the first of a pair, which is in use outside Ray's
            knowledge, the second is free.
    """

    bundle: int
    cpus: float = 1.0
    accelerator: str = ""
    accelerators: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[int, ...] | None = None
    swap: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Resources reserved on a cluster: a placement group, each engine's share, and their processes' environment."""

    group: PlacementGroup
    engine_placements: tuple[EnginePlacement, ...]
    runtime_env: Mapping[str, Any] = field(default_factory=dict)

    def options(self, bundle: int, environment: Mapping[str, str], **resources: Any) -> dict[str, Any]:
        """Returns the options of an actor in a bundle. The environment is set before anything is imported there."""
        own = self.runtime_env.get("env_vars", {})
        return {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, bundle),
            "runtime_env": {**self.runtime_env, "env_vars": {**own, **environment}},
            "max_restarts": 0,
            "max_task_retries": 0,
            **resources,
        }


class EngineActor:
    """Runs an engine in a process of the cluster."""

    def __init__(self, spec: EngineSpec, engine_placement: EnginePlacement) -> None:
        self._spec = spec
        self._engine: Engine | None = None
        self._spans = spec.spans()
        redirect_output(spec.log)
        end_group_with_process()
        if engine_placement.accelerators:
            variable = VISIBLE_DEVICES[engine_placement.accelerator]
            assigned = ray.get_runtime_context().get_accelerator_ids()[engine_placement.accelerator]
            os.environ[variable] = ",".join(visible_devices(engine_placement, assigned, os.environ.get(variable)))
        elif not spec.accelerators:
            os.environ.update(dict.fromkeys(VISIBLE_DEVICES.values(), ""))  # an engine on the CPU takes no one's

    async def open(self) -> Failure | None:
        """Opens the engine, off this actor's event loop."""
        printed = size_of(self._spec.log)
        try:
            self._engine = await asyncio.to_thread(self._spec.open, self._spans)
        except Exception as error:
            why = one_line(self._spec.name, error, read_from(self._spec.log, printed))
            return Failure(EngineError.__name__, why)
        return None

    async def pid(self) -> int:
        """Returns the id of this process."""
        return os.getpid()

    async def live(self) -> None:
        """Runs as long as this process: who waits for it sees the end."""
        await asyncio.Event().wait()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the engine; whoever cancels the call cancels the method."""
        failpoint(f"engine_{method}")
        try:
            return await getattr(self._engine, method)(*arguments)
        except Exception as error:
            return Failure.of(error, self._spec.name)
        finally:
            if method == "close" and self._spans is not None:
                self._spans.close()


class RayEngine(RemoteEngine):
    """Calls an engine in an `EngineActor`, over its handle. Implements `sidecar.protocol.Engine`."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name = name
        self._actor = actor

    async def open(self) -> None:
        """Waits for the process and has it open its engine.

        Raises:
            EngineError: the engine cannot be opened there, or its process died.
        """
        await self._answer(self._actor.open.remote())

    async def pid(self) -> int:
        """Returns the id of its process, on its node.

        Raises:
            EngineError: the process is dead.
        """
        pid: int = await self._answer(self._actor.pid.remote())
        return pid

    async def close(self) -> None:
        """See `Engine.close`. Its process ends too; closing twice, or a dead engine, is no error."""
        alive = self._actor.live.remote()
        try:
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._call("close")
        finally:
            self.kill()
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._answer(alive)  # the kill is only on its way: until it arrives, calls would be answered

    def kill(self) -> None:
        """Ends the process at once."""
        with contextlib.suppress(RayError, RuntimeError, ValueError):  # it is dead, or the cluster is
            ray.kill(self._actor)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self._answer(self._actor.call.remote(method, *arguments))

    async def _answer(self, answer: Any) -> Any:
        try:
            outcome = await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except RayError as error:
            raise EngineError(f"{self._name}: {why_it_died(error)}") from None
        if isinstance(outcome, Failure):
            raise _ERRORS[outcome.kind](outcome.line)
        return outcome


class RayEngineLauncher:
    """Starts engines on a cluster that this process has joined. Implements `sidecar.hosting.spec.EngineLauncher`."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._engines: list[RayEngine] = []

    async def start(self, spec: EngineSpec) -> RayEngine:
        """See `EngineLauncher.start`. A restarted engine waits until the process before it has left its placement.

        Raises:
            EngineError: it did not start; the line says why.
        """
        engine_placement = self._placement.engine_placements[spec.index]
        resources = {
            **engine_placement.resources,
            **({"TPU": engine_placement.accelerators} if engine_placement.accelerator == "TPU" else {}),
        }
        options = self._placement.options(
            engine_placement.bundle,
            {**LEFT_ALONE, **spec.environment},
            num_cpus=engine_placement.cpus,
            num_gpus=engine_placement.accelerators if engine_placement.accelerator == "GPU" else 0,
            resources=resources,
            max_concurrency=CALLS_AT_ONCE,
        )
        try:
            actor = ray.remote(EngineActor).options(**options).remote(spec, engine_placement)
        except (RayError, RuntimeError, ValueError) as error:
            raise EngineError(f"{spec.name} did not start: {first_line(error)}") from None
        engine = RayEngine(spec.name, actor)
        self._engines.append(engine)
        try:
            await engine.open()
        except BaseException:
            engine.kill()
            raise
        return engine

    def platform(self, index: int) -> str:
        """See `EngineLauncher.platform`: what is reserved for it on the cluster, whatever this machine has."""
        return self._placement.engine_placements[index].accelerator.lower() or "cpu"

    def close(self) -> None:
        """See `EngineLauncher.close`."""
        for engine in self._engines:
            engine.kill()


def visible_devices(engine_placement: EnginePlacement, assigned: Sequence[str], visible: str | None) -> list[str]:
    """Returns the names of the accelerators that an engine may see.

    Args:
        engine_placement: of the engine.
        assigned: names of the accelerators that Ray assigned to it.
        visible: names of those that its node shows, with commas between them; None shows all, named by number.
    """
    if engine_placement.devices is None:
        return [engine_placement.swap.get(name, name) for name in assigned]
    names = visible.split(",") if visible else None
    return [names[i] if names else str(i) for i in engine_placement.devices]


def why_it_died(error: RayError) -> str:
    """Returns one line from the long message of a Ray error."""
    if isinstance(error, GetTimeoutError):
        return "an actor has not answered yet"
    text = " ".join(str(error).split())
    _, _, reason = text.rpartition("The actor is dead because ")
    reason, _, _ = reason.partition(" Some common causes")
    if "worker process has died" in reason:
        _, _, detail = reason.rpartition("Worker exit detail: ")
        return f"its process died: {detail}"
    return f"its actor is gone: {reason[:300]}"
