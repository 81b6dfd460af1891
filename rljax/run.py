"""Runs training from Python: what the command line does, one step at a time.

import rljax
config = rljax.load_config("configs/quickstart.py", max_steps=50)
with rljax.Run(config) as run:
    for metrics in run:
        print(metrics["step"], metrics["reward/mean"])
    print(run.audit())
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
from rljax.launch.heartbeat import TrainerHeartbeat
from rljax.launch.launchers import LAUNCHERS, learner_placement
from rljax.launch.protocol import Launched
from rljax.launch.run_explorer import run_explorer
from rljax.learner.hosts import Hosts, means_loss
from rljax.learner.sharding import select_devices
from rljax.ledger import audit as auditing
from rljax.ledger import processes
from rljax.ledger.backend import backend_of
from rljax.ledger.compatibility import check_model, record_validation_plan
from rljax.ledger.database import LedgerError, RunFailedError, StaleWriterError, is_finished, ledger_exists
from rljax.models.frozen import FrozenBase
from rljax.observe.atomic_write import write_atomic
from rljax.pipeline.assemble.checkpoints import chosen_checkpoints
from rljax.pipeline.assemble.checks import check_run, check_start
from rljax.pipeline.assemble.compile_cache import keep_compiled
from rljax.pipeline.assemble.devices import adopts_versions, check_shared, share_gpu_memory, takes_versions_over
from rljax.pipeline.assemble.learner import (
    StepRunner,
    frozen_base,
    open_checkpoints,
    open_demonstrations,
    resume_learner,
)
from rljax.pipeline.assemble.run import ProgressCallback, open_ledger, open_model, validation_fingerprint
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.teachers import open_teachers
from rljax.pipeline.banner import banner, warn_of_unread, warn_of_unseen_accelerator
from rljax.pipeline.evaluate import Evaluator
from rljax.pipeline.metrics.engines import Gauges
from rljax.pipeline.observers import LearnerObservers, Observers
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.train import Outputs, Trainer
from rljax.weights.channels import open_publisher
from rljax.weights.publisher import Publisher
from sidecar.errors import escape_exception, escape_log_records, first_line

T = TypeVar("T")

log = logging.getLogger(__name__)

FINISHED = "this run is finished; raise max_steps (or total_epochs) to go on, or choose another run_dir"


class Run:
    """Trains a run directory, step by step.

    ``config.mode`` decides what an iteration starts: a learner, and with ``both`` an explorer in a thread beside it.
    Leaving the ``with`` block, or `close`, saves a checkpoint and ends what was started; the same config resumes it.
    After an error in a step nothing is saved: the run goes on from its last checkpoint.
    """

    def __init__(self, config: Config, progress: ProgressCallback | None = None, hosts: Hosts | None = None) -> None:
        """Opens the run directory and the model; ``progress`` is called with messages on downloads and conversions.
        ``hosts``: that are the learner together, of which this process is the first.

        Raises:
            ConfigError, LedgerError, ModelNotFound: one line that says what is wrong and what to do.
        """
        if config.has_hosts and hosts is None:
            raise ConfigError(
                f"learner.hosts.number={config.learner.hosts.number}: a Run is one process; start the command rljax, "
                "or write 1"
            )
        share_gpu_memory(config)
        keep_compiled(config)
        escape_log_records()
        self.config = config
        self._hosts = hosts
        run_dir = RunDir.at(config)
        begins = not ledger_exists(backend_of(config, run_dir.root))
        self._tasksets = Tasksets(config)
        check_run(config, self._tasksets, begins=begins)  # of a run that is refused there is no directory
        self._checked = begins
        with RunDir.created(config) as self.run_dir:
            model = open_model(config, self.run_dir, progress) if begins else None
            if model is not None and config.mode != "explore":
                open_teachers(config, model, progress)
            self._db = open_ledger(config, self.run_dir)  # of a run that has begun first: it may not be this config's
            with contextlib.ExitStack() as undo:
                undo.callback(self._db.close)
                self.model = model or open_model(config, self.run_dir, progress)
                check_model(self._db, self.model.fingerprint, config.model.path)
                undo.pop_all()
        self._steps: Generator[dict[str, float], None, None] | None = None
        self._trainer: Trainer | None = None
        self._stop = threading.Event()
        self._interrupted = self._closed = False
        self._gauges: Gauges = self._summed_gauges

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, float]]:
        """Trains, and yields the metrics of each step; a loop that was left goes on where it stood.

        After a failure, or `interrupt`, it goes on from the last checkpoint; when the run is finished there is nothing
        to yield, and a warning says so.

        Raises:
            RuntimeError: the run is closed.
        """
        if self._closed:
            raise RuntimeError(f"{self.run_dir.root}: this run is closed; open it with rljax.Run(config) to go on")
        if self._steps is None:
            if self.finished:
                log.warning("%s: %s", self.run_dir.root, FINISHED)
                return iter(())
            self._interrupted = False
            self._steps = _escaped(self._train())
        return self._steps

    @property
    def finished(self) -> bool:
        """True once the run has ended as configured, so that there is nothing left to train."""
        return is_finished(self._db, self.config.max_steps)

    @property
    def interrupted(self) -> bool:
        """True if `interrupt` ended the training before its end."""
        return (self._interrupted or self._stop.is_set()) and not self.finished

    def interrupt(self) -> None:
        """Asks the training to save a checkpoint and end; another loop goes on. Any thread, any signal handler."""
        self._stop.set()

    def explore(self, on_start: Callable[[Callable[[], None]], None] | None = None) -> None:
        """Explores until the run ends; ``on_start`` is handed a function that asks the explorer to leave.

        Raises:
            RunFailedError, TimeoutError, EngineError: as `rljax.rollout.explorer.Explorer.run`.
        """
        launch = LAUNCHERS[self.config.launcher]
        run_explorer(self.config, self.run_dir, self._db, self.model, self._take_tasksets(), launch, on_start)

    def evaluate(self, checkpoint: str = "latest") -> dict[str, float]:
        """Scores a checkpoint on the validation tasksets; see `config.checkpoint` for the names.

        In the middle of a loop, ``latest`` means the weights of now: they are saved first.
        """
        return self._with_evaluator(checkpoint, lambda evaluator: evaluator.evaluate(), scores=True)

    def generate(self, prompts: Sequence[str], *, temperature: float = 0.0, checkpoint: str = "latest") -> list[str]:
        """Generates answers of a checkpoint, as in `evaluate`, to user messages."""
        return self._with_evaluator(
            checkpoint, lambda evaluator: evaluator.generate(prompts, temperature), scores=False
        )

    def audit(self) -> dict[str, Any]:
        """Returns the audit of the ledger; also written to ``audit.json``."""
        report = auditing.audit(self._db)
        write_atomic(self.run_dir.root / "audit.json", json.dumps(report, indent=1) + "\n")
        return report

    def close(self) -> None:
        """Closes the run: ends what was started, with a checkpoint, and closes the ledger."""
        self._closed = True
        try:
            if self._steps is not None:
                self._steps.close()
        finally:
            self._db.close()

    def _with_evaluator(
        self, checkpoint: str, ask: Callable[[Evaluator], Coroutine[Any, Any, T]], *, scores: bool
    ) -> T:
        if self._trainer is not None and checkpoint == "latest":
            self._trainer.save()
        (steps,) = chosen_checkpoints(dataclasses.replace(self.config, checkpoint=checkpoint), self.run_dir)[-1:]

        async def main() -> T:
            with contextlib.closing(ENGINE_LAUNCHERS[self.config.launcher](self.config)) as engine_launcher:
                parts = self.config, self.run_dir, self.model, engine_launcher
                async with Evaluator(*parts, scores=scores) as evaluator:
                    await evaluator.serve(steps)
                    return await ask(evaluator)

        # A thread of its own: a notebook's has an event loop running already.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, main()).result()

    def _train(self) -> Generator[dict[str, float], None, None]:
        config, db = self.config, self._db
        with contextlib.ExitStack() as parts:
            parts.callback(self._forget)
            if not self._checked:
                check_start(config, self._tasksets)  # of one that is refused audit and report stay
                self._checked = True
            heartbeat = parts.enter_context(contextlib.closing(TrainerHeartbeat(db, self._patience)))
            record_validation_plan(db, validation_fingerprint(config))
            is_replaced = functools.partial(processes.is_replaced, db, heartbeat.token)
            placed = parts.enter_context(learner_placement(config))  # before anything writes what a cluster may refuse
            check_shared(placed, select_devices(placed.learner.devices, placed.learner.mesh.size))
            observers = parts.enter_context(
                LearnerObservers(
                    config,
                    self.run_dir.root,
                    self.model,
                    lambda: self._gauges(),
                    is_replaced,
                    functools.partial(auditing.audit, db),
                )
            )
            parts.push(functools.partial(self._report, observers))
            checkpoints = open_checkpoints(config, self.run_dir, self._hosts)
            parts.callback(checkpoints.wait)
            tasksets = self._take_tasksets()
            demonstrations = open_demonstrations(config, self.model, db, tasksets)
            known = config.mode == "both" or config.imitates_alone
            prompts = tasksets.prompt_lengths(self.model.tokenizer) if known else None
            learner, damaged = resume_learner(placed, self.model, db, checkpoints, prompts, self._hosts)
            step_runner = StepRunner(learner, demonstrations, prompts)
            explorer = self._launch_explorer(frozen_base(learner), tasksets, observers)
            if explorer is not None:
                parts.enter_context(contextlib.closing(explorer))
            publisher = parts.enter_context(contextlib.closing(self._open_publisher()))
            check = (lambda: None) if explorer is None else explorer.check
            outputs, life = Outputs(self.run_dir, checkpoints, publisher, observers), heartbeat.token
            trainer = Trainer(config, db, step_runner, outputs, self._gauges, self._stop, check, life, damaged)
            observers.start(banner(placed, self.run_dir.root, learner))
            warn_of_unseen_accelerator(config)
            warn_of_unread(config, learner.mesh.devices.flat[0].platform)
            if explorer is not None:
                explorer.start()
            self._trainer = trainer
            try:
                yield from trainer.steps()
            except StaleWriterError:
                raise  # another trainer has taken over: the run goes on without this one
            except RunFailedError as error:
                raise (error if explorer is None or explorer.error is None else explorer.error) from None
            except Exception as error:
                if self._hosts is None or not means_loss(error):  # all hosts start again, and the run goes on
                    trainer.fail_run(error)
                raise

    def _open_publisher(self) -> Publisher:
        config = self.config
        return open_publisher(
            config.sync_method,
            self.run_dir.weights,
            on_ray=config.launcher == "ray",
            host=config.sync_address,
            shares_device=takes_versions_over(config),
            adopted=adopts_versions(config),
            deltas=config.sync_deltas,
        )

    @property
    def _patience(self) -> float:
        """Seconds after which the ledger takes a former host 0 for dead, which may have been on another machine."""
        return 0.0 if self._hosts is None else 2 * self.config.rollout.claim_timeout

    def _report(self, observers: LearnerObservers, _: object, error: BaseException | None, __: object) -> None:
        """Writes audit and report, unless the run goes on with another trainer, which will, or this one is refused, as
        by a cluster: those of what was trained before are still true.
        """
        if self._trainer is None and isinstance(error, ConfigError):
            return
        try:
            if not observers.is_replaced():
                observers.finish(self.audit(), first_line(error) if isinstance(error, Exception) else None)
        except LedgerError as unread:
            if error is None:
                raise
            log.warning("no last report is written: %s", unread)  # the run ends by the error before

    def _take_tasksets(self) -> Tasksets:
        """Returns the tasksets, opened or not, to who needs them; the next to ask opens them anew."""
        taken, self._tasksets = self._tasksets, Tasksets(self.config)
        return taken

    def _summed_gauges(self) -> dict[str, float]:
        return processes.summed_gauges(self._db, "explorer")

    def _forget(self) -> None:
        self._steps = self._trainer = None
        self._gauges = self._summed_gauges  # an explorer's would keep its engines
        self._interrupted = self._stop.is_set()
        self._stop.clear()  # heeded: it is not meant for the next loop

    def _launch_explorer(self, frozen: FrozenBase | None, tasksets: Tasksets, observers: Observers) -> Launched | None:
        config = self.config
        if config.mode != "both" or not config.asks_engines:
            return None
        launch, model = LAUNCHERS[config.launcher], dataclasses.replace(self.model, frozen=frozen)
        explorer = launch(config, self.run_dir, self._db, model, tasksets, observers.trace, needed=True)
        self._gauges = explorer.gauges
        return explorer


def _escaped(steps: Generator[T, None, None]) -> Generator[T, None, None]:
    """Escapes what its exceptions say: a notebook prints their traceback, and with it words of environments."""
    try:
        yield from steps
    except Exception as error:
        escape_exception(error)
        raise
