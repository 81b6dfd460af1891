"""Programs that a learner runs: what it will compile, known from shapes alone, and compiled side by side before the
first batch. jit finds what was compiled here when it is called with arguments of the same shapes and shardings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.monitoring
import numpy as np
from jaxtyping import Int

from rljax.config.schema import Config
from rljax.interrupts import COMPILING
from rljax.learner.objective import DTYPES, Progress
from rljax.learner.packing import Batch
from rljax.learner.prepare import Preparation
from rljax.learner.scoring import bare, behaviour_divergence, gaps_sharded_as
from rljax.learner.state import TrainState, whole_models
from rljax.learner.trainable import TrainableModel
from rljax.models.common.heap import return_freed
from rljax.models.common.params import Params
from sidecar.errors import first_line

log = logging.getLogger(__name__)

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event for each program that XLA compiled, or that was read from the compile cache."""
_UNMET = "%s; the run goes on until a batch has that shape"


@dataclass(frozen=True)
class Program:
    """A function under jit, and the abstract arguments that it is called with.

    Attributes:
        kind: what it computes; no two of a kind have the same shape.
        function: as `jax.jit` returns it.
        arguments: arrays, or `jax.ShapeDtypeStruct` with their shardings.
        shape: of the minibatch that it is for; empty where it is for none.
        likely: whether a run is expected to need it; otherwise it is one that some batches need.
        publishes: whether it is run to publish a version, the first before any batch; otherwise it is part of a step.
    """

    kind: str
    function: Any
    arguments: tuple[Any, ...]
    shape: str = ""
    likely: bool = True
    publishes: bool = False

    @property
    def name(self) -> str:
        """Kind and shape."""
        return f"{self.kind} {self.shape}".rstrip()

    def lower(self) -> jax.stages.Lowered:
        """Traces and lowers the program for the platform of its arguments' devices."""
        lowered: jax.stages.Lowered = self.function.lower(*self.arguments)
        return lowered


def shape_of(batch: Batch) -> str:
    """Names the shape of a minibatch, abstract or not: slots, rows and length, and the room for trained places."""
    slots, rows, length = batch.mask.shape
    return f"{slots}×{rows}×{length}, {batch.places.shape[-1]} trained"


def step_programs(
    config: Config,
    preparation: Preparation,
    policy: TrainableModel,
    critic: TrainableModel | None,
    state: TrainState,
    base: Params | None,
    prompts: Int[np.ndarray, " prompts"] | None = None,
) -> Iterator[Program]:
    """Yields the programs of a step, for each shape that a minibatch may be packed into, those of likely shapes first;
    then what renews the reference, where the config has it renewed.

    Args:
        config: of the run.
        preparation: of the minibatches.
        policy: what is trained.
        critic: None without one.
        state: abstract or not: shapes, dtypes and shardings are read.
        base: likewise, of what is frozen below an adapter; None without one.
        prompts: see `Preparation.abstract_batches`.
    """
    count, own, progress = np.zeros((), np.int32), state.aux_state, Progress()
    params, whole = policy.objective.whole(state.params, base), whole_models(config, own, base, policy.objective)
    for batch, likely in preparation.abstract_batches(prompts):

        def program(
            kind: str, function: Any, *arguments: Any, shape: str = shape_of(batch), likely: bool = likely
        ) -> Program:
            return Program(kind, function, arguments, shape, likely)

        scored, group_of = preparation.abstract_scores(batch, "reference" in whole)
        score, scores, read = preparation.logprobs.program(batch), scored.scores, bare(batch)
        others, gaps = replace(read, routes=None), scores.sequence_gap is not None
        if scores.proximal_logprobs is not None or gaps:
            yield program("log-probabilities", score, params, read, count)
        if scores.reference_logprobs is not None:
            yield program("reference", score, whole["reference"], others, count)
            if config.algorithm.kl.where == "reward":
                estimator = config.algorithm.kl.resolved_estimator
                yield program("divergence", behaviour_divergence, batch, scores.reference_logprobs, estimator)
        if gaps:
            both = (scores.sequence_gap, scores.reference_logprobs)
            sums = gaps_sharded_as(batch.places.sharding, config.autotunes)
            yield program("sums of log-ratios", sums, *both, read, group_of)
        for name, teacher in preparation.teachers.items():
            if (scored_by := teacher.program(batch)) is not None:
                yield program(f"teacher {name}", *scored_by, others, count)
        if critic is not None and preparation.values is not None:
            yield program("values", preparation.values.program(batch), whole["critic"], others, count)
            trained = (own["critic"], own["critic_opt_state"])
            yield program("critic's update", critic.update, *trained, scored, count, progress, base)
        yield program("update", policy.update, state.params, state.opt_state, scored, count, progress, base)
    if "reference" in own and config.algorithm.kl.refresh_steps is not None:
        yield Program("copy of the reference", policy.copy_as(DTYPES[config.model.dtype]), (state.params,))


class ProgramError(RuntimeError):
    """Raised when a run cannot go on without a program that does not compile, or has no room on its device."""


@contextlib.contextmanager
def told_of_memory(what: str) -> Iterator[None]:
    """Has an error by which a device has no room for what is done say what to lower.

    Raises:
        ProgramError: instead of that error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ProgramError(
            f"{what}: the learner's device has no room for it: lower learner.rows_per_microbatch, or set "
            f"model.remat=full; mode=plan says what takes how much ({first_line(error)})"
        ) from error


class Compilation:
    """Compiles programs side by side, in threads. Of one that fails there is a warning, for no batch may ever have its
    shape: a run that needs it stops where it does. Where all likely ones of a kind fail, the run stops at once.

    Args:
        programs: in the order in which they are begun, but that likely ones come first.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = tuple(sorted(programs, key=lambda program: not program.likely))
        self._began = self._last = time.perf_counter()
        self._failed: list[str] = []
        self._begun = {Future[None](): program for program in self.programs}
        self._left = set(self._begun)
        self._likely = {future for future, program in self._begun.items() if program.likely}
        self._awaited = self._likely
        self._queue, self._order = list(self._begun), threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, min(len(programs), len(os.sched_getaffinity(0)))), COMPILING)
        for _ in self.programs:
            self._pool.submit(self._compile_next)

    def _compile_next(self) -> None:
        with self._order:
            future = self._queue.pop(0)
        try:
            self._compile(self._begun[future])
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def _compile(self, program: Program) -> None:
        try:
            with told_of_memory(program.name):
                program.lower().compile()
        except Exception as error:
            said = str(error) if isinstance(error, ProgramError) else f"{program.name} could not be compiled: {error}"
            said = " ".join(said.split())
            self._failed.append(program.name)
            if program.likely:  # `wait` knows what becomes of the others of its kind
                raise ProgramError(said) from error
            log.warning(_UNMET, said)
        finally:
            return_freed()

    def prefer(self, shapes: Collection[str]) -> int:
        """Has the programs of minibatches' shapes go before all others that are yet to be begun, and `wait` wait for
        them; returns how many are not compiled yet. One that fails is left to who calls it.
        """
        self._awaited = {f for f, program in self._begun.items() if program.shape in shapes and not f.done()}
        with self._order:
            self._queue.sort(key=lambda future: future not in self._awaited)
        return len(self._awaited)

    def wait(self, seconds: float) -> bool:
        """Waits for the likely programs, or for those that are preferred, so many seconds at most; returns whether all
        are done with.

        Raises:
            ProgramError: none of a kind could be compiled.
        """
        wait_for(self._awaited & self._left, seconds)
        done = {future for future in self._left if future.done()}
        self._left -= done
        for future, program in self._begun.items():
            if future in done & self._likely and (error := future.exception()) is not None:
                of_kind = {other for other in self._likely if self._begun[other].kind == program.kind}
                if not of_kind & self._left and all(other.exception() for other in of_kind):
                    raise error
                log.warning(_UNMET, error)
        self._last = time.perf_counter() if done else self._last
        return not self._awaited & self._left

    @property
    def left(self) -> tuple[str, ...]:
        """Names of the programs that are waited for, as of the last `wait`; first those begun first."""
        return tuple(program.name for future, program in self._begun.items() if future in self._awaited & self._left)

    def __str__(self) -> str:
        every = len(self.programs)
        done = sum(f not in self._left and p.name not in self._failed for f, p in self._begun.items())
        return f"programs: {done} of {every} compiled" + (f" in {self._last - self._began:.1f} s" if done else "")

    def close(self) -> None:
        """Begins no more programs; those under way end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class CompileMeter:
    """Counts the programs that the thread which makes it compiles, from then on. Use as a context manager."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._count = 0
        self._seconds = 0.0

    def __enter__(self) -> CompileMeter:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED and threading.get_ident() == self._thread:
            self._count += 1
            self._seconds += duration_secs

    def add(self, programs: int, seconds: float) -> None:
        """Counts programs of other threads that this one waited for."""
        self._count += programs
        self._seconds += seconds

    def take(self) -> tuple[int, float]:
        """Returns the programs since the last call, and the seconds that they took to compile or to be read."""
        taken, self._count, self._seconds = (self._count, self._seconds), 0, 0.0
        return taken
