"""The launcher ``local``: an explorer in a thread or, with ``explorer.own_process``, in a child process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax

from rljax.config.engines import ENGINES
from rljax.config.load import as_plain
from rljax.config.schema import Config
from rljax.launch.explorer_process import ExplorerProcess, explorer_config
from rljax.launch.explorer_thread import ExplorerThread, explorer_thread
from rljax.learner.sharding import select_devices
from rljax.ledger.database import Database
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.assemble.devices import engine_devices
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.run_dir import RunDir
from sidecar.hosting.local import LocalEngineLauncher
from sidecar.workers import lifeline


def start_locally(
    config: Config,
    run: RunDir,
    db: Database,
    model: Model,
    tasksets: Tasksets,
    trace: Trace | NullTrace,
    *,
    needed: bool,
) -> ExplorerThread | ExplorerProcess:
    """See `rljax.launch.protocol.Launcher`."""
    if config.mode == "both" and config.explorer.own_process:
        return ExplorerProcess(db, config.explorer.name, LocalProcess(config, run), needed)
    return explorer_thread(config, run, db, model, tasksets, trace, LocalEngineLauncher(), needed=needed)


class LocalProcess:
    """Runs the program in mode explore as a child process. See `rljax.launch.explorer_process.ProcessHandle`.

    Its config goes through a pipe, since there may be a password in it.
    """

    def __init__(self, config: Config, run: RunDir) -> None:
        """Sets the log of the child's output below ``run``.

        Raises:
            ConfigError: there are no devices for its engines.
        """
        directory = run.root.absolute() / "logs"
        directory.mkdir(exist_ok=True)
        self._log = directory / f"{config.explorer.name}.log"
        self._config = json.dumps(as_plain(explorer_config(_with_engine_devices(config))))
        # Beside engines in processes of their own it computes nothing: accelerators are theirs and the learner's.
        engines = (config.sidecar.engine, *(judge.engine for judge in config.judges.values()))
        embedded = any(ENGINES[engine].in_process for engine in engines)
        self._environment = {} if embedded or config.reward_models else {"JAX_PLATFORMS": "cpu"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """See `ProcessHandle`."""
        with self._log.open("wb") as log:
            self._process = lifeline.start(
                [*lifeline.python_module("rljax.child_main"), str(os.getpid())],
                env={**os.environ, **lifeline.import_path(), **self._environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        assert self._process.stdin is not None
        with (
            contextlib.suppress(BrokenPipeError),
            self._process.stdin as pipe,
        ):  # broken where it ended; `wait` says why
            pipe.write(self._config.encode())

    @property
    def pid(self) -> int:
        """Process id, once it is started."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> str:
        """See `ProcessHandle`."""
        assert self._process is not None
        code = self._process.wait()
        if code == 0:
            return ""
        if code < 0:
            return f"process {self._process.pid} was ended by {signal.Signals(-code).name}"
        return last_error_line(self._log) or f"process {self._process.pid} ended with exit code {code}; see {self._log}"

    def stop(self) -> None:
        """See `ProcessHandle`."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """See `ProcessHandle`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def last_error_line(log: Path) -> str:
    """Returns the last line in which the command line said why it ended; empty if it did not."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line.removeprefix("rljax: ") for line in reversed(lines) if line.startswith("rljax: ")), "")


def _with_engine_devices(config: Config) -> Config:
    """Returns the config with ``sidecar.devices=auto`` resolved to accelerators: those that the learner leaves, or with
    ``colocate`` its own. The learner's are named where judges and reward models are to keep off them.
    """
    if config.judges or config.reward_models:
        learners = select_devices(config.learner.devices, config.learner.mesh.size)
        if learners[0].platform != "cpu":
            config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, devices=_named(learners)))
    if config.sidecar.devices != "auto":
        return config
    devices = engine_devices(config)
    if devices[0].platform == "cpu":
        return config
    return dataclasses.replace(config, sidecar=dataclasses.replace(config.sidecar, devices=_named(devices)))


def _named(devices: Sequence[jax.Device]) -> str:
    return f"{devices[0].platform}:{','.join(str(device.id) for device in devices)}"
