"""Runs the learner's loop: wait for a batch, train it, publish, checkpoint, record all of it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rljax.config.schema import Config
from rljax.learner.checkpoints import Checkpoints, DamagedCheckpointError
from rljax.learner.packing import Batch
from rljax.learner.programs import Compilation, CompileMeter, shape_of
from rljax.ledger import leases, processes, validations, versions
from rljax.ledger.database import Database, LedgerError
from rljax.ledger.fence import Fence
from rljax.ledger.filtered_streak import filtered_by_taskset, filtered_during
from rljax.ledger.leases import LeasedBatch, NoBatchYet
from rljax.observe.parts import BEFORE, BEFORE_SAVE, CHECKPOINT, COMPILE, LEDGER, PROBE, REPORT
from rljax.pipeline.assemble.learner import StepRunner, checkpoint_metadata, compile_ahead
from rljax.pipeline.assemble.run import probe_tokens
from rljax.pipeline.metrics.batch import batch_metrics
from rljax.pipeline.metrics.clock import PARTS, Clock
from rljax.pipeline.metrics.engines import EngineMeter, Gauges
from rljax.pipeline.metrics.filters import LONG_STREAK, filter_metrics, streak_warning
from rljax.pipeline.observers import LearnerObservers
from rljax.pipeline.publishing import Named, Publishing
from rljax.pipeline.run_dir import RunDir
from rljax.timeouts import ProgressTimeout
from rljax.weights.publisher import Publisher
from sidecar.failpoints import failpoint

log = logging.getLogger(__name__)

COMPILE_WAIT = 0.2
"""Seconds between looks at whether the run is to stop, while its programs are compiled."""
LOOK_FOR_DEAD = 2.0
"""Seconds between looks for processes that died while the learner waits."""


@dataclass(frozen=True)
class Outputs:
    """Takes what a learner makes: files of the run, checkpoints, versions, and what observers show of it."""

    run: RunDir
    checkpoints: Checkpoints
    publisher: Publisher
    observers: LearnerObservers


class Trainer:
    """Trains a run to its end, one step at a time."""

    def __init__(
        self,
        config: Config,
        db: Database,
        step_runner: StepRunner,
        outputs: Outputs,
        gauges: Gauges,
        stop: threading.Event,
        check_explorer: Callable[[], None] = lambda: None,
        life: str | None = None,
        damaged: Mapping[int, DamagedCheckpointError] | None = None,
    ) -> None:
        """Takes the parts of the run. ``stop`` asks the loop to save a checkpoint and end after the step at hand;
        ``check_explorer`` raises where the explorer of this process has ended and the ledger cannot be told; ``life``:
        see `begin_lineage`; ``damaged``: the checkpoints that the learner did not go on from, by step, to be set aside.
        """
        self._config = config
        self._run = outputs.run
        self._db = db
        self._step_runner = step_runner
        self._learner = learner = step_runner.learner
        self._checkpoints = outputs.checkpoints
        self._publishing = Publishing(config, db, outputs.run, outputs.publisher, outputs.observers)
        self._observers = outputs.observers
        self._engines = EngineMeter(gauges)
        self._probe = probe_tokens(config, learner.architecture)
        self._life = life
        self._damaged = damaged or {}
        self._lineage = 0  # before it has begun
        self._pruned = 0
        self._stop = stop
        self._check_explorer = check_explorer
        self._compiles = CompileMeter()
        self._ahead = Compilation([])
        self._warned_at: int | None = None

    def steps(self) -> Iterator[dict[str, float]]:
        """Yields the metrics of each step, until ``max_steps`` or the end of the data.

        Raises:
            StaleWriterError: another trainer has taken over.
            RunFailedError: some process recorded why the run cannot go on.
            NonFiniteError: too many updates in a row were not finite.
            TimeoutError: a wait outlasted ``wait_timeout``; names what was waited for.
            LedgerError: the ledger cannot be used, or could not be told that the last explorer has ended.
        """
        failpoint("begin")
        self._lineage = leases.begin_lineage(self._db, self._learner.steps, self._life)
        self._set_damaged_aside()
        # Only now: neither a config that is refused nor a learner that was replaced may change the run's own.
        failpoint("config")
        for change in self._run.write_config(self._config, self._learner.steps, self._fence.check):
            self._observers.message(f"changed since the run last started: {change}")
        if self._lineage > 1 and not self._learner.steps:
            self._observers.message("no step had been saved: training begins again at step 0")
        self._observers.resume(self._learner.steps, self._fence)
        if (done := self._learner.steps) >= self._config.max_steps:
            message = f"nothing is left to train: {done} steps are done and max_steps={self._config.max_steps}"
            self._observers.message(f"{message}; raise max_steps to go on")
        self._ahead = self._compile_ahead()
        with self._compiles, contextlib.closing(self._ahead), self._publishing:
            if self._ahead.programs:
                beginning = f"version {self._learner.steps} to be published · the learner compiles"
                self._observers.waiting(beginning, 0, self._config.groups_per_batch)
            self._publish(Clock())
            self._await_programs(self._ahead)
            if self._ahead.programs:
                self._observers.message(f"learner's {self._ahead}")
            self._compiles.take()
            yield from self._train_all()
        if not self._stop.is_set():
            self._finish()

    def _train_all(self) -> Iterator[dict[str, float]]:
        try:
            clock = Clock()
            while self._learner.steps < self._config.max_steps and not self._stop.is_set():
                batch = self._next_batch(clock)
                if batch is None:
                    break
                metrics = self._train(batch, clock)
                if self._publishes(self._learner.steps):
                    self._publish(clock)
                with self._observers.part(REPORT):
                    values = self._report(batch, metrics, clock)
                clock = Clock(clock.began + values["time/step"])  # the row is written in the time of the next step
                clock.add("report", clock.began)
                # After its row is written: no row may be missing of a step that a restart does not train again.
                with self._observers.part(CHECKPOINT):
                    self._checkpoint(clock)
                left = time.perf_counter()
                yield {"step": self._learner.steps, **values}
                clock.began += time.perf_counter() - left  # what the caller does meanwhile is no part of a step
        except GeneratorExit:
            self._stop.set()
            raise
        finally:
            if self._stop.is_set():
                self.save()

    def _compile_ahead(self) -> Compilation:
        # While engines start and the first version is published.
        if self._learner.steps >= self._config.max_steps:
            return Compilation([])
        return compile_ahead(self._learner, len(self._probe), self._step_runner.prompts)

    def _await_programs(self, ahead: Compilation) -> None:
        looked, seconds = time.perf_counter(), self._config.wait_timeout
        progress_timeout = ProgressTimeout(seconds)
        while not ahead.wait(COMPILE_WAIT) and not self._stop.is_set():
            self._publishing.check()
            self._observers.waiting(str(ahead), 0, self._config.groups_per_batch)
            now = time.perf_counter()
            # One program may take long: as long as something computes, a tenth of one core at least, it is slow and
            # not stuck. What else computes here soon waits for the learner.
            computed = sum(os.times()[:4]) // (seconds / 10)
            if progress_timeout.is_over((len(ahead.left), computed), now):
                raise TimeoutError(
                    f"trainer: waited {seconds:g} s for the compiler, which computes nothing: {ahead.left[0]} is not "
                    "compiled; remove what the compile cache holds, or report it to JAX"
                )
            if now - looked > LOOK_FOR_DEAD:
                leases.check_living(self._db, self._lineage)
                self._look_for_dead()
                looked = now
        self._observers.waiting(None, 0, self._config.groups_per_batch)

    def _await_shapes(self, batches: Sequence[Batch]) -> None:
        since = time.perf_counter()
        if needed := self._ahead.prefer({shape_of(batch) for batch in batches}):
            with self._observers.part(COMPILE):
                self._await_programs(self._ahead)
            self._compiles.add(needed, time.perf_counter() - since)

    def _set_damaged_aside(self) -> None:
        done = self._learner.steps
        for step, why in self._damaged.items():
            aside = self._checkpoints.set_aside(step, self._fence)
            log.warning(
                "%s: resumed from step %d; the damaged one is %s until the next checkpoint is saved", why, done, aside
            )

    @property
    def _fence(self) -> Fence:
        return Fence(self._db, self._lineage)

    def fail_run(self, error: Exception) -> None:
        """Records why the run cannot go on; where the ledger cannot be written, the run still ends by ``error``.

        Raises:
            StaleWriterError: another trainer has taken over: the run goes on, and this failure is this one's alone.
        """
        try:
            leases.fail_run(self._db, self._lineage, f"trainer: {type(error).__name__}: {error}")
        except LedgerError as untold:
            log.warning("the ledger could not be told of the trainer's end: %s", untold)

    def _next_batch(self, clock: Clock) -> LeasedBatch | None:
        end, done = self._step_runner.end_of_demonstrations, self._learner.steps
        if end is not None and done >= end:
            self._observers.message(f"the demonstrations are exhausted: the run ends after {done} steps")
            return None
        begin = since = looked = kind_since = time.perf_counter()
        progress_timeout, kind = ProgressTimeout(self._config.wait_timeout), "generation"
        while not self._stop.is_set():
            seen = self._db.notifier.changes
            self._publishing.check()
            failpoint("lease")
            asked, found = time.perf_counter(), leases.lease(self._db, self._lineage)
            if isinstance(found, LeasedBatch):
                since = clock.add("lease", since)
                self._observers.span(LEDGER, since - asked)
                self._observers.span(f"wait for {kind}", since - kind_since)
                self._observers.span("wait for a batch", since - begin, step=found.step)
                return found
            if found.over:
                self._observers.message(f"{found.reason}: the run ends after {self._learner.steps} steps")
                return None
            if progress_timeout.is_over(found.progress, since):
                reason = f"{found.reason}{self._publishing.unannounced()}"
                raise TimeoutError(f"trainer: waited {self._config.wait_timeout:g} s for: {reason}")
            if since - looked > LOOK_FOR_DEAD:
                self._look_for_dead()
                looked = since
            if kind != found.kind:
                self._observers.span(f"wait for {kind}", since - kind_since)
                kind, kind_since = found.kind, since
            self._wait(found, seen)
            clock.add(f"wait/{kind}", since)
            since = clock.add("wait", since)
            self._log_validations()
        return None

    def _look_for_dead(self) -> None:
        self._check_explorer()
        processes.mark_dead_processes(self._db)

    def _wait(self, found: NoBatchYet, seen: int) -> None:
        self._observers.waiting(str(found), found.ready, self._config.groups_per_batch, found.filtered is not None)
        streak, steps = found.filtered, self._learner.steps
        if streak is not None and streak.groups >= LONG_STREAK and self._warned_at != steps:
            self._warned_at = steps
            self._observers.message(streak_warning(streak))
        self._db.notifier.wait(seen)

    def _train(self, batch: LeasedBatch, clock: Clock) -> dict[str, float]:
        self._observers.waiting(None, self._config.groups_per_batch, self._config.groups_per_batch)
        since = time.perf_counter()
        if self._learner.mesh.devices.flat[0].platform == "cpu":  # Orbax holds the state, which an update would copy
            self._checkpoints.wait()
            since = clock.add("checkpoint", since)
        failpoint("train")
        with self._observers.recorded():
            self._publishing.make_room(self._lineage)
            metrics = self._step_runner.train(batch, self._await_shapes)
        publishes, shown = self._publishes(self._learner.steps), int(metrics["batch/demonstrations"])
        with self._observers.part(LEDGER):
            leases.mark_trained(self._db, self._lineage, batch.step, publishes, shown)
        spent = clock.add("train", since) - since
        self._observers.span(f"train step {batch.step}", spent, loss=metrics["loss"])
        return metrics

    def _publishes(self, version: int) -> bool:
        # Nobody samples training data of demonstrations alone: a version is for validation then, or for the end.
        due = version % self._config.sync_interval == 0 and not self._config.imitates_alone
        return due or self._validates(version) or self._is_last(version)

    def _validates(self, version: int) -> bool:
        if not self._config.validates:
            return False
        every = self._config.eval_steps
        return self._is_last(version) or (every is not None and version % every == 0)

    def _is_last(self, version: int) -> bool:
        return version == self._config.max_steps

    def _publish(self, clock: Clock, validate: bool | None = None) -> None:
        since = time.perf_counter()
        with self._observers.part(BEFORE):
            self._publishing.wait()  # for the version before: one is under way at most
        failpoint("publish")
        version, dtype = self._learner.steps, self._config.resolved_sync_dtype
        validate = self._validates(version) if validate is None else validate
        named = Named(version, self._lineage, self._config.model.path, dtype, self._learner.adapter_info)
        with self._observers.part(PROBE):
            probe = self._learner.score(self._probe)
        self._publishing.begin(named, self._learner.export(dtype), probe, validate)
        self._observers.span(f"publish version {version}", clock.add("publish", since) - since)

    def _checkpoint(self, clock: Clock) -> None:
        since = time.perf_counter()
        if self._learner.steps % self._config.save_steps == 0 or self._is_last(self._learner.steps):
            failpoint("checkpoint")
            self._save()
        # What a committed checkpoint covers need not be trained again; a replay starts from the oldest that is kept.
        oldest = min(self._checkpoints.committed(), default=0)
        if oldest > self._pruned:
            leases.prune_payloads(self._db, self._lineage, oldest)
            self._pruned = oldest
        clock.add("checkpoint", since)

    def _report(self, batch: LeasedBatch, metrics: dict[str, float], clock: Clock) -> dict[str, float]:
        wall = time.perf_counter() - clock.began
        rejected = filtered_during(self._db, batch.step)
        tasksets = dict.fromkeys({group.task.taskset for group in batch.groups}, 0)
        tasksets |= filtered_by_taskset(self._db, batch.step) if rejected else {}
        values = batch_metrics(batch) | metrics
        values |= filter_metrics(self._config.algorithm.filters, rejected, tasksets)
        values |= {f"time/{name}": clock.spent.get(name, 0.0) for name in PARTS}
        values |= {name: seconds for name, seconds in clock.spent.items() if name.startswith("wait/")}
        values["time/step"] = wall
        values["compile/programs"], values["compile/seconds"] = self._compiles.take()
        busy = self._engines.share() * wall
        values["time/engine_busy"] = busy
        alone, sampled = not batch.groups, values["tokens/sampled"]
        if not alone:
            values["batch/masked_fraction"] = 1 - values["tokens/trained"] / sampled if sampled else 0.0
        values["tokens_per_second"] = (values["batch/trained_tokens"] if alone else sampled) / wall
        values["bound/fraction"] = min(1.0, max(clock.spent["train"], busy) / wall)
        values |= self._publishing.metrics
        gap = versions.latest_gap(self._db)
        if gap is not None and self._publishes(self._learner.steps):
            names = ("parity/version", "parity/max_abs_logprob_gap", "parity/mean_abs_logprob_gap")
            values |= dict(zip(names, gap, strict=True))
        self._observers.step(self._learner.steps, values, batch)
        self._log_validations()
        return values

    def _log_validations(self) -> None:
        for version, result in validations.take_unreported(self._db):
            self._observers.validation(version, result)

    def _finish(self) -> None:
        self._publishing.wait()
        if not self._is_last(self._learner.steps) and self._config.validates:
            self._publish_for_validation()
        self.save()
        self._await_validations()
        if not self._stop.is_set():
            # What was still in use, or validated, when the last version was published.
            self._publishing.prune(self._lineage)
            leases.finish(self._db, self._lineage)

    def save(self) -> None:
        """Saves a checkpoint of the current weights and waits for it; called by the training thread between two steps.

        Raises:
            StaleWriterError: another trainer has taken over.
        """
        self._fence.check()
        self._checkpoints.wait()
        if self._learner.steps not in self._checkpoints.committed():
            self._save()
        self._checkpoints.wait()

    def _save(self) -> None:
        with self._observers.part(BEFORE_SAVE):
            self._publishing.settle()
        metadata = checkpoint_metadata(self._learner, self._lineage)
        self._checkpoints.save(self._learner.steps, self._learner.state, metadata, self._fence)

    def _publish_for_validation(self) -> None:
        """Publishes and validates the last weights where the data ended before ``max_steps``."""
        newest = versions.newest(self._db)
        if newest is None or newest.version != self._learner.steps:
            self._publish(Clock(), validate=True)
            self._publishing.wait()
        else:
            validations.request(self._db, newest.version, newest.lineage)

    def _await_validations(self) -> None:
        progress_timeout = ProgressTimeout(self._config.wait_timeout)
        while (left := validations.unfinished(self._db)) and not self._stop.is_set():
            seen = self._db.notifier.changes
            self._look_for_dead()
            nobody = "" if processes.gauges(self._db, "explorer") else "; no explorer is alive to run them, start one"
            reason = f"{left} validation{'s' if left > 1 else ''} to end{nobody}"
            if progress_timeout.is_over((left, processes.tokens(self._db)), time.perf_counter()):
                raise TimeoutError(f"trainer: waited {self._config.wait_timeout:g} s for {reason}")
            leases.check_living(self._db, self._lineage)
            self._observers.waiting(reason, 0, self._config.groups_per_batch)
            self._db.notifier.wait(seen)
        self._log_validations()
