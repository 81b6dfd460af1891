"""The launcher ``ray``: engines are actors of a cluster, and so is the explorer with ``explorer.own_process``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from rljax.config.load import as_plain, from_plain
from rljax.config.schema import Config
from rljax.config.validate_placement import device_indices
from rljax.launch.explorer_process import ExplorerProcess, explorer_config
from rljax.launch.explorer_thread import ExplorerThread, explorer_thread
from rljax.launch.ray_cluster import RayCluster, cluster_address, learner_platform
from rljax.launch.ray_engines import OwnRayEngineLauncher, reserve
from rljax.launch.ray_placement import ACCELERATORS
from rljax.launch.run_explorer import run_explorer
from rljax.ledger.compatibility import check_model
from rljax.ledger.database import Database
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.assemble.run import Model, open_ledger, open_model
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.run_dir import RunDir
from sidecar.garbage import collect_seldom
from sidecar.hosting.ray import Placement, RayEngineLauncher, why_it_died
from sidecar.workers.child_process import redirect_output
from sidecar.workers.lifeline import end_group_with_process


def start_on_ray(
    config: Config,
    run: RunDir,
    db: Database,
    model: Model,
    tasksets: Tasksets,
    trace: Trace | NullTrace,
    *,
    needed: bool,
) -> ExplorerThread | ExplorerProcess:
    """See `rljax.launch.protocol.Launcher`.

    Raises:
        ClusterError, ConfigError: the cluster cannot be used, or has no room.
    """
    if config.mode == "both" and config.explorer.own_process:
        with contextlib.ExitStack() as parts:
            placement = parts.enter_context(reserve(config))
            return ExplorerProcess(db, config.explorer.name, Actor(config, run, placement), needed, parts.pop_all())
    return explorer_thread(config, run, db, model, tasksets, trace, OwnRayEngineLauncher(config), needed=needed)


@contextlib.contextmanager
def learner_placed_on_ray(config: Config) -> Iterator[Config]:
    """See `rljax.launch.launchers.learner_placement`. A cluster of one's own, or a learner on CPUs, reserves nothing.

    Raises:
        ClusterError, ConfigError: the cluster cannot be used, or has no room.
    """
    named, _ = device_indices(config.learner.devices)
    platform = learner_platform() if named == "auto" else named
    if platform not in ACCELERATORS or cluster_address(config.ray.address) is None:
        yield config
        return
    with contextlib.closing(RayCluster(config)) as cluster:
        devices = cluster.place_learner(platform)
        yield dataclasses.replace(config, learner=dataclasses.replace(config.learner, devices=devices))


class ExplorerActor:
    """Runs an explorer in a process of the cluster."""

    def __init__(self, log: str) -> None:
        redirect_output(log)
        end_group_with_process()
        self._stop = threading.Event()
        self._leave = lambda: None

    def explore(self, config: dict[str, Any], directory: str, placement: Placement) -> str:
        """Explores to the end; returns why, where it failed. ``directory`` is what paths are relative to."""
        try:
            os.chdir(directory)
            self._explore(from_plain(config), placement)
        except Exception as error:
            return " ".join(f"{type(error).__name__}: {error}".split())
        return ""

    def stop(self) -> None:
        """Asks the explorer to hand its claims back and end."""
        self._stop.set()
        self._leave()

    def _explore(self, config: Config, placement: Placement) -> None:
        collect_seldom()
        run = RunDir.create(config)
        with contextlib.closing(open_ledger(config, run)) as db:
            model = open_model(config, run)
            check_model(db, model.fingerprint, config.model.path)
            with contextlib.closing(RayEngineLauncher(placement)) as engine_launcher:
                launch = partial(explorer_thread, engine_launcher=engine_launcher)
                run_explorer(config, run, db, model, Tasksets(config), launch, self._started)

    def _started(self, leave: Any) -> None:
        self._leave = leave
        if self._stop.is_set():
            leave()


class Actor:
    """Handles an `ExplorerActor` as a `rljax.launch.explorer_process.ProcessHandle`."""

    def __init__(self, config: Config, run: RunDir, placement: Placement) -> None:
        self._config = explorer_config(config)
        self._log = str(run.root.absolute() / "logs" / f"{config.explorer.name}.log")
        self._placement = placement
        self._actor: Any = None
        self._end: Any = None

    def start(self) -> None:
        """See `ProcessHandle`."""
        last = self._placement.group.bundle_count - 1
        # It computes nothing itself: accelerators are the learner's and the engines'.
        options = self._placement.options(last, {"JAX_PLATFORMS": "cpu"}, num_cpus=1, max_concurrency=2)
        self._actor = ray.remote(ExplorerActor).options(**options).remote(self._log)
        self._end = self._actor.explore.remote(as_plain(self._config), os.getcwd(), self._placement)

    def wait(self) -> str:
        """See `ProcessHandle`."""
        try:
            reason: str = ray.get(self._end)
        except RayError as error:
            return why_it_died(error)
        finally:
            self.kill()
        return reason

    def stop(self) -> None:
        """See `ProcessHandle`."""
        if self._actor is not None:
            self._actor.stop.remote()

    def kill(self) -> None:
        """See `ProcessHandle`."""
        with contextlib.suppress(RayError, RuntimeError, ValueError):  # it is dead, or the cluster is
            ray.kill(self._actor)
