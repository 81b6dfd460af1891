"""Writes everything that a process of a run leaves behind for people, behind one object."""

from __future__ import annotations

import contextlib
import functools
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax

from rljax.config.load import publishable
from rljax.config.schema import Config
from rljax.ledger.fence import Fence
from rljax.ledger.leases import LeasedBatch, retired_by
from rljax.observe.flat_rewards import FlatRewards, flat_streaks
from rljax.observe.metrics import MetricsLog, read_metrics
from rljax.observe.parts import part, recorded
from rljax.observe.progress import Progress
from rljax.observe.report import read_run, write_report
from rljax.observe.report.background import ReportThread
from rljax.observe.resources import Resources, Source
from rljax.observe.samples import Sample, SampleLog, as_text
from rljax.observe.tensorboard import TensorBoard
from rljax.observe.trace import NullTrace, Trace, part_path
from rljax.observe.trace_merge import merge_traces
from rljax.observe.tracking import Tracker
from rljax.observe.weights_and_biases import WeightsAndBiases
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.metrics.batch import batch_histograms
from rljax.pipeline.metrics.routes import lost_routes
from rljax.tasks.templates import decoded
from sidecar.errors import first_line, printable

LEARNER = "learner"
"""The learner's track in the trace."""


@functools.cache
def run_facts() -> dict[str, str]:
    """Returns the origin of this program and the platform that it runs on."""
    devices = jax.local_devices()
    facts = {"device": f"{len(devices)} × {devices[0].device_kind}", "host": platform.node()}
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # installed without git: no commit to name
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        facts["commit"] = found.stdout.strip()
    return facts


MEMORY = {"memory_mib": "bytes_in_use", "peak_memory_mib": "peak_bytes_in_use", "memory_limit_mib": "bytes_limit"}
"""Gauges of a device, and what they are among its statistics."""


def device_memory() -> dict[str, float]:
    """Returns the mebibytes in use now, at most so far and to be had, of the fullest of this process's devices; nothing
    where the platform does not report them.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    fullest = max(stats, key=lambda found: found.get("peak_bytes_in_use", found.get("bytes_in_use", 0)))
    return {gauge: fullest[name] / 2**20 for gauge, name in MEMORY.items() if name in fullest}


class Observers:
    """Live view and trace of a process. Use as a context manager."""

    def __init__(self, config: Config, root: Path, role: str, total_steps: int | None) -> None:
        """Opens them; ``root`` is the run directory, ``role`` names this process."""
        observe = config.observe
        self._root = root
        self._traced = observe.trace
        self._limit = observe.trace_events
        self.trace = Trace(part_path(root, role), observe.trace_events, role) if observe.trace else NullTrace()
        self.progress = Progress(observe.progress, f"{root.name} · {role}", total_steps, config.logging_steps)

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.progress.close()
        self.trace.close()
        if self._traced and self._may_merge():
            merge_traces(self._root, self._limit)

    def start(self, banner: Sequence[str]) -> None:
        """Shows the lines with which this process starts."""
        for line in banner:
            self.progress.message(line)

    def _may_merge(self) -> bool:
        return True  # any process merges all parts, the newest wins


class LearnerObservers(Observers):
    """Observers of the learner: they add metrics, samples, gauges, the report."""

    def __init__(
        self,
        config: Config,
        root: Path,
        model: Model,
        engines: Source,
        is_replaced: Callable[[], bool] = lambda: False,
        audit: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Opens them. ``engines`` returns sums over the engines; ``is_replaced``, whether the run goes on with another
        learner, which will leave report and trace behind; ``audit``, the ledger's audit of now.
        """
        super().__init__(config, root, LEARNER, config.max_steps)
        self._config = config
        self.is_replaced = is_replaced
        self._report = ReportThread(lambda: self._write_report(audit(), running=True))
        self._trackers = _trackers(config, root)
        self._metrics = MetricsLog(root, self._trackers)
        decode = functools.partial(decoded, model.tokenizer)
        self._samples = SampleLog(root, LEARNER, decode, config.observe.samples_per_step)
        self._resources = Resources({"device": device_memory, "engine": engines}, root)
        self._flat = FlatRewards(config.group_size)
        self._lost_routes = False
        self._sampled: list[Sample] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._keep(f"ended by {type(error).__name__}: {first_line(error)}")
        self._resources.close()
        self._report.close()
        self._metrics.close()
        for tracker in self._trackers:
            tracker.close()
        super().__exit__(kind, error, traceback)

    def start(self, banner: Sequence[str]) -> None:
        """Shows the lines with which the learner starts, and adds them to ``logs/learner.log``."""
        super().start(banner)
        self._keep(*banner)

    def _keep(self, *lines: str) -> None:
        """Adds lines to ``logs/learner.log``, which explains the run to who comes later."""
        log = self._root / "logs" / f"{LEARNER}.log"
        with contextlib.suppress(OSError):  # a disk that is full ends the run where more is lost
            log.parent.mkdir(exist_ok=True)
            with log.open("a") as file:
                file.write("\n".join((time.strftime("%Y-%m-%d %H:%M:%S"), *map(printable, lines), "")))

    def _may_merge(self) -> bool:
        return not self.is_replaced()

    def resume(self, steps: int, fence: Fence) -> None:
        """Resumes from ``steps`` batches: what was written of later ones is redone.

        Raises:
            StaleWriterError: another learner has taken over; so do `step` and `validation`.
        """
        self._metrics.truncate(steps + 1, fence.check)
        self._samples.truncate(steps + 1, fence.lineage)
        self.progress.update(bound=float(self._config.staleness_bound))
        if steps:
            retired = retired_by(fence.db, fence.lineage)
            again = f"; {retired} groups of weights that are lost are sampled again" if retired else ""
            self.message(f"resumed from the checkpoint of step {steps}{again}")

    def waiting(self, reason: str | None, ready: int, needed: int, news: bool = False) -> None:
        """Reports what the learner waits for, and how full its next batch is; ``news`` as of `Progress.waiting`."""
        self.progress.update(ready=float(ready), needed=float(needed))
        self.progress.waiting(reason, news)

    def message(self, text: str) -> None:
        """Shows a line, and keeps it."""
        self.progress.message(text)
        self._keep(text)

    def span(self, name: str, seconds: float, **details: Any) -> None:
        """Records a span of the learner's work that has just ended."""
        now = time.time()
        self.trace.span(LEARNER, name, now - seconds, now, **details)

    def recorded(self, track: str = LEARNER) -> AbstractContextManager[None]:
        """Records the parts that the work inside notes itself."""
        return recorded(functools.partial(self.trace.span, track))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Records what is done inside as a part of the learner's work, and the parts that it notes itself."""
        with self.recorded(), part(name):
            yield

    def step(self, step: int, values: Mapping[str, float], batch: LeasedBatch) -> None:
        """Records a step; ``step`` counts batches completed."""
        gauges = self._resources.take()
        row = {**values, **gauges}
        self._metrics.write(step, row)
        self._sampled = self._samples.write(step, batch.groups, batch.step)
        for tracker in self._trackers:
            tracker.write(step, histograms=batch_histograms(batch))
        self.progress.step(step, row)
        if (streak := self._flat.news(step, values)) is not None:
            self.message(str(streak))
        lost = lost_routes(self._config.algorithm, values)
        if lost is not None and not self._lost_routes:  # said once
            self.message(f"step {step}: {lost}")
        self._lost_routes = lost is not None
        if batch.groups:
            self.trace.counter("reward", time.time(), mean=values["reward/mean"])
            self.trace.counter("staleness", time.time(), mean=values["staleness/mean"], max=values["staleness/max"])

    def validation(self, version: int, result: Mapping[str, float]) -> None:
        """Records a validation. Row 0 describes the initial weights; its reward is that of their validation."""
        row = dict(result)
        if version == 0:
            scores = [value for name, value in result.items() if name.endswith("/score")]
            row |= dict.fromkeys(("time/wait", "tokens_per_second", "bound/fraction"), 0.0)
            row["time/step"] = result.get("val/seconds", 0.0)
            if not self._config.imitates_alone:
                row |= {"reward/mean": statistics.fmean(scores), "staleness/mean": 0.0, "staleness/max": 0.0}
        self._metrics.write(version, row)
        self.progress.metrics(version, result)
        texts = {f"samples/{number}": as_text(sample) for number, sample in enumerate(self._sampled, 1)}
        if texts:
            for tracker in self._trackers:
                tracker.write(version, texts=texts)
        if self._config.observe.report:
            self._report.ask()

    def finish(self, audit: Mapping[str, Any], failure: str | None = None) -> None:
        """Writes the report of a run that ends; ``failure`` says by what, where the audit does not."""
        with contextlib.suppress(KeyboardInterrupt):
            self._report.close()
            if self._config.observe.report:
                self._write_report(audit, failure=failure)

    def _write_report(self, audit: Mapping[str, Any], failure: str | None = None, running: bool = False) -> None:
        facts = publishable(self._config), audit, run_facts() | self._flat_steps()
        data = read_run(self._root, *facts, failure=failure, running=running)
        write_report(self._root, data, unless=self.is_replaced)

    def _flat_steps(self) -> dict[str, str]:
        found = flat_streaks(read_metrics(self._root), self._config.group_size)
        zero = "every reward is 0"
        steps = ", ".join(f"{one.first} to {one.last}{f' ({zero})' if one.zero else ''}" for one in found)
        return {"rewards do not differ in steps": steps} if steps else {}


def _trackers(config: Config, root: Path) -> list[Tracker]:
    found = []
    if config.observe.tensorboard:
        found.append(Tracker("TensorBoard", lambda: TensorBoard(root / "tensorboard")))
    if (project := config.observe.wandb) is not None:
        found.append(Tracker("Weights & Biases", lambda: WeightsAndBiases(root, project, publishable(config))))
    return found
