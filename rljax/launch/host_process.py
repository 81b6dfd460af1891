"""Starts one host of a learner as a child process, and hears its signs of life."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from dataclasses import dataclass

import psutil

from rljax.config.load import as_plain
from rljax.config.schema import Config
from sidecar.workers import lifeline
from sidecar.workers.pulse import Pulses


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process among the hosts of a learner.

    Attributes:
        rank: its number, from 0.
        number: of hosts.
        coordinator: HOST:PORT at which the supervisor of host 0 listens for the others.
        said_by: what says so, for messages; empty where it is the config.
        devices: numbers, with commas, of the accelerators of its machine that are its own; empty for all.
    """

    rank: int
    number: int
    coordinator: str
    said_by: str = ""
    devices: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the host's process."""
        return {"JAX_LOCAL_DEVICE_IDS": self.devices} if self.devices else {}


class HostProcess:
    """A host of a learner in a child process, which leads a group of its own and does not outlive this process.

    Its config goes through a pipe, since there may be a password in it; so does where JAX's service is.
    """

    def __init__(self, config: Config, place: Place, service: str, environment: dict[str, str] | None = None) -> None:
        """Starts the process.

        Args:
            config: of the run.
            place: of this host, which is written into its config.
            service: HOST:PORT of JAX's coordination service.
            environment: variables of the process, beside this one's.
        """
        self.rank = place.rank
        self._computed = 0.0
        given = json.dumps({"config": as_plain(_at(config, place)), "service": service})
        reading, writing = os.pipe()
        self.pulses = Pulses(reading)
        try:
            self.process: subprocess.Popen[bytes] = lifeline.start(
                [*lifeline.python_module("rljax.host_main"), str(os.getpid()), str(writing)],
                env={**os.environ, **lifeline.import_path(), **place.environment, **(environment or {})},
                stdin=subprocess.PIPE,
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C is the supervisor's to pass on
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:  # broken where it has ended
            pipe.write(given.encode())

    def has_computed(self) -> bool:
        """Returns whether it has used a processor since it was asked last. On a machine that is too busy for threads of
        Python to take turns, that is the sign that it lives.
        """
        former = self._computed
        with contextlib.suppress(psutil.Error):
            self._computed = sum(psutil.Process(self.process.pid).cpu_times()[:2])
        return self._computed != former

    def kill(self) -> None:
        """Kills it and what it has started, also where it is halted."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self, seconds: float) -> bool:
        """Waits so long for its end, once it is killed; returns whether it has come. A process within a call of the
        kernel that nothing interrupts, for a disk or a driver that hangs, ends when that returns.
        """
        os.close(self.pulses.descriptor)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(seconds, 0.0))
        return self.process.returncode is not None


def _at(config: Config, place: Place) -> Config:
    hosts = dataclasses.replace(config.learner.hosts, start="auto", rank=place.rank, coordinator=place.coordinator)
    return dataclasses.replace(config, learner=dataclasses.replace(config.learner, hosts=hosts))


def how_it_ended(code: int) -> str:
    """Returns how a process ended, by the code that `subprocess.Popen` gives."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
