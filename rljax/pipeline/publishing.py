"""Publishes and announces the learner's versions, beside its next step."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from rljax.config.schema import Config
from rljax.ledger import versions
from rljax.ledger.database import Database, StaleWriterError
from rljax.observe.parts import GATHER, LEDGER, WRITE, part
from rljax.pipeline.observers import LEARNER, LearnerObservers
from rljax.pipeline.run_dir import RunDir
from rljax.weights.gathering import Tensors
from rljax.weights.publisher import Publisher, PublishError, SharedTensors
from sidecar.channels.versions import AdapterInfo
from sidecar.errors import first_line
from sidecar.failpoints import failpoint

log = logging.getLogger(__name__)

LAST_SECONDS = 60.0
"""Seconds that a version still has where the run has failed."""

PUBLISHER = "publisher"
"""Track in the trace of what is written beside the learner's work, and name of its thread."""


@dataclass(frozen=True)
class Named:
    """Number, lineage and kind of a version; see `rljax.weights.publisher.Publisher.publish`."""

    version: int
    lineage: int
    model: str
    dtype: str
    adapter: AdapterInfo | None


class Publishing:
    """Has versions written, checked and announced by a thread, one at a time. Nothing is announced before it is whole.

    The learner hands over tensors that its next update does not touch (`Publisher.take`) and trains on. Without
    ``sync_overlap``, or with several hosts, which make each layer together, it waits until the version is announced.
    """

    def __init__(
        self, config: Config, db: Database, run: RunDir, publisher: Publisher, observers: LearnerObservers
    ) -> None:
        """Takes where versions go, and who is told of them. Starts no thread before the first version."""
        self._overlap, self._patience = config.sync_overlap, config.wait_timeout
        self._db, self._run, self._publisher, self._observers = db, run, publisher, observers
        self._under_way: Future[None] | None = None
        self._begun, self._version = 0.0, 0
        self.metrics: dict[str, float] = {}
        """Of the newest announced version: seconds from its weights until it was announced, and what its publisher
        says; none before one.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits for the version that is under way, after a failure a minute at most. Of two failures the first is
        raised, the other logged.
        """
        if error is not None:
            self._patience = min(self._patience, time.perf_counter() - self._begun + LAST_SECONDS)
        try:
            self.wait()
        except Exception as second:
            if error is None:
                raise
            log.warning("version %d is not published: %s", self._version, second)

    def begin(self, named: Named, tensors: Tensors, probe: np.ndarray, validate: bool) -> None:
        """Begins to publish a version, after `wait`; the weights may change once this returns.

        Args:
            named: what it is.
            tensors: of the learner, made as they are read.
            probe: float32 ``[probe]``, log-probabilities that the learner gives the probe (promise P7).
            validate: request a validation of it.

        Raises:
            PublishError, HostsError: it is not announced, where that is waited for.
            StaleWriterError: another learner has taken over.
        """
        self._begun, self._version = time.perf_counter(), named.version
        with self._observers.recorded():
            self.make_room(named.lineage)
        if not self._overlap or isinstance(tensors, SharedTensors):
            self._publish(LEARNER, named, tensors, probe, validate)
            return
        taken, outcome = self._taken(tensors), Future[None]()

        def work() -> None:
            try:
                self._publish(PUBLISHER, named, taken, probe, validate)
            except BaseException as error:  # whatever it was, the learner is to end by it
                outcome.set_exception(error)
                self._db.notifier.notify()
            else:
                outcome.set_result(None)

        self._under_way = outcome
        # No executor: Python waits for its threads at the end, and a disk that hangs must not keep a process.
        threading.Thread(target=work, name=PUBLISHER, daemon=True).start()

    def check(self) -> None:
        """Raises what ended the version that was under way, if it has failed; waits for nothing.

        Raises:
            PublishError, StaleWriterError: it could not be written, or another learner has taken over.
        """
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def wait(self) -> None:
        """Waits until no version is under way.

        Raises:
            PublishError, StaleWriterError: as `check`.
            TimeoutError: it is not announced ``wait_timeout`` seconds after it was begun.
        """
        outcome, self._under_way = self._under_way, None
        if outcome is None:
            return
        try:
            outcome.exception(self._left)
        except TimeoutError:
            raise TimeoutError(
                f"trainer: waited {self._patience:g} s for version {self._version} to be written and announced; look "
                f"at the disk or network that {self._run.weights} lies on, or raise wait_timeout"
            ) from None
        outcome.result()

    def settle(self) -> None:
        """Waits as `wait` does and raises nothing; `check` and `wait` do that. A version and a checkpoint
        are not begun together: they would share the disk, and engines wait for the version.
        """
        if self._under_way is not None:
            wait([self._under_way], self._left)

    @property
    def _left(self) -> float:
        return max(self._begun + self._patience - time.perf_counter(), 0.0)

    def unannounced(self) -> str:
        """Returns a clause about the version that is under way, for a line about a wait; empty where none is."""
        if self._under_way is None:
            return ""
        spent = time.perf_counter() - self._begun
        return f"; version {self._version} has been on its way to {self._run.weights} for {spent:.0f} s"

    def prune(self, lineage: int) -> None:
        """Withdraws all versions but those that the ledger names."""
        with part(LEDGER):
            versions.take_deletable(self._db, lineage, self._publisher.spare)
            standing = versions.standing(self._db)
        self._publisher.prune(standing, lineage)

    def make_room(self, lineage: int) -> None:
        """Withdraws, before an update or a version, what takes memory and what no engine computes with any more. Not
        beside a version that is under way: it is none that the ledger names before it is announced.
        """
        if not self._publisher.spare and (self._under_way is None or self._under_way.done()):
            self.prune(lineage)

    def _taken(self, tensors: Tensors) -> Tensors:
        try:
            with self._observers.recorded(), part(GATHER):
                return self._publisher.take(tensors)
        except (MemoryError, RuntimeError) as error:
            raise PublishError(
                f"version {self._version} cannot be kept beside the next step: {first_line(error)}; where there is no "
                "room for it, write sync_method=checkpoint and sync_overlap=false, or cut the learner over more devices"
            ) from error

    def _publish(self, track: str, named: Named, tensors: Tensors, probe: np.ndarray, validate: bool) -> None:
        begun, version, lineage = self._begun, named.version, named.lineage
        model, dtype, adapter = named.model, named.dtype, named.adapter
        with self._observers.recorded(track):
            with part(WRITE):
                path = self._publisher.publish(version, lineage, tensors, model=model, dtype=dtype, adapter=adapter)
            failpoint("announce")
            path = self._run.announced_path(path)
            try:
                with part(LEDGER):
                    versions.announce(self._db, lineage, version, path, probe=probe, validate=validate)
            except StaleWriterError:
                self._publisher.delete(version, lineage)
                raise
            measured = {"publish/seconds": time.perf_counter() - begun, "publish/version": float(version)}
            self.metrics = measured | dict(self._publisher.metrics)
            self.prune(lineage)
