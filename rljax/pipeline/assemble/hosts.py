"""Joins the hosts of a learner: finds out which of them this process is, and sees that all of them are of one run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # JAX has no public name for its client of the coordination service

import rljax
from rljax.config.fields import ConfigError
from rljax.config.load import as_plain
from rljax.config.schema import Config
from rljax.interrupts import end_at_once
from rljax.learner.hosts import Hosts, HostsError
from rljax.learner.sharding import select_devices
from sidecar.errors import first_line

END, STOP = "end", "stop"
"""Announcements of host 0 at its end: that it is done, and that it cannot go on, with the reason."""
OF_ONE_HOST = ("learner.hosts.rank", "learner.hosts.coordinator")
"""Keys in which hosts differ."""
_FAREWELL = 5.0
"""Seconds in which the others are to hear that host 0 cannot go on: of its death JAX tells less."""
_SHUTDOWN = 30
"""Seconds that the hosts wait for each other at their end."""
_LAUNCHERS = "learner.hosts.rank and learner.hosts.coordinator"

log = logging.getLogger(__name__)


def is_of_hosts(config: Config) -> bool:
    """Returns whether the learner of this process is one of several hosts."""
    return config.learner.hosts.number > 1 and config.mode in ("both", "train")


@contextlib.contextmanager
def joined(config: Config) -> Iterator[Hosts | None]:
    """Joins the other hosts of the learner while the context lasts; yields this one's end, None where it has no others.
    Handlers of signals are to be set within.

    Raises:
        ConfigError: it is not known which host this is, or the mesh leaves one out.
        HostsError: the hosts do not find each other, or another runs something else; and what is raised within on
            another host.
    """
    if not is_of_hosts(config):
        yield None
        return
    initialise(config)
    keys = config.learner.hosts
    hosts = Hosts(distributed.global_state.client, jax.process_index(), keys.number, config.wait_timeout)
    try:
        hosts.exchange_names(socket.gethostname())
        if hosts.leads:
            hosts.announce("start")
        else:
            hosts.hear()
        hosts.agree("start", identity(config))
        check_mesh(config, hosts)
        yield hosts
    except BaseException as error:
        _tell(hosts, error)
        end_at_once()
        raise
    finally:
        hosts.close()
    if hosts.leads:
        hosts.announce(END)
    jax.distributed.shutdown()


def _tell(hosts: Hosts, error: BaseException) -> None:
    """Tells the other hosts, as far as they listen, why this one ends."""
    with contextlib.suppress(Exception):
        if hosts.leads:
            hosts.announce(STOP, {"why": first_line(error) if isinstance(error, Exception) else type(error).__name__})
            hosts.gather("end", b"", _FAREWELL)
        elif not isinstance(error, HostsError):
            hosts.fail(first_line(error) if isinstance(error, Exception) else type(error).__name__)


def initialise(config: Config) -> None:
    """Connects this process to the others by `jax.distributed.initialize`.

    Raises:
        ConfigError: neither the config nor the environment says which host this is.
        HostsError: host 0 cannot be reached in time.
    """
    keys = config.learner.hosts
    rank, coordinator, number = place_of(config, os.environ)
    jax.config.update("jax_enable_preemption_service", False)  # its handler of SIGTERM would keep ours from running
    # On CPUs two programs under way at once may exchange their arrays in another order on each host, and wait for ever.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    seconds = int(min(config.wait_timeout, 10 * 60))
    try:
        jax.distributed.initialize(
            coordinator,
            number,
            rank,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=keys.heartbeat_timeout,
            shutdown_timeout_seconds=_SHUTDOWN,
        )
    except ValueError as error:
        raise ConfigError(
            f"learner.hosts.number={keys.number}: nothing says which of them this process is ({first_line(error)}); "
            f"write {_LAUNCHERS}, or start it by torchrun, SLURM, Open MPI, or on the hosts of a TPU slice"
        ) from error
    except RuntimeError as error:
        raise HostsError(
            f"learner.hosts.coordinator={coordinator}: host {rank} of {keys.number} did not meet the others within "
            f"{seconds} s ({first_line(error)}); start all of them with the same coordinator"
        ) from error
    if jax.process_count() != keys.number:
        raise ConfigError(
            f"learner.hosts.number={keys.number}: {jax.process_count()} processes were started; write as many"
        )


def place_of(config: Config, environment: Mapping[str, str]) -> tuple[int | None, str | None, int | None]:
    """Returns this host's rank, host 0's address and the number of hosts, by the config or by the variables that
    torchrun sets; None where JAX is to find out by itself, as with SLURM, Open MPI, Kubernetes and TPU slices.

    Raises:
        ConfigError: torchrun has started another number of processes.
    """
    keys = config.learner.hosts
    if keys.rank is not None and keys.coordinator is not None:
        return keys.rank, keys.coordinator, keys.number
    known = [environment.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
    rank, size, address, port = known
    if rank is None or size is None or address is None or port is None:
        return keys.rank, keys.coordinator, None if keys.rank is None else keys.number
    if int(size) != keys.number:
        raise ConfigError(f"learner.hosts.number={keys.number}: WORLD_SIZE={size} processes were started; write {size}")
    # torchrun itself listens at its port.
    return int(rank), keys.coordinator or f"{address}:{int(port) + 1}", keys.number


def check_mesh(config: Config, hosts: Hosts) -> None:
    """Checks that the mesh has devices of every host.

    Raises:
        ConfigError: it has none of some.
    """
    chosen = select_devices(config.learner.devices, config.learner.mesh.size)
    left_out = sorted(set(range(hosts.number)) - {device.process_index for device in chosen})
    if left_out:
        raise ConfigError(
            f"learner.mesh: multiplies to {len(chosen)} devices, none of them of {hosts.names[left_out[0]]}; the "
            f"{hosts.number} hosts have {jax.device_count()}: write a mesh of as many"
        )


def identity(config: Config) -> dict[str, str]:
    """Returns what all hosts have to have in common, as hashes by names for messages: every key of the config, the
    program, and JAX.
    """
    said = {f"config.{path}": _hash(json.dumps(value)) for path, value in _flat(as_plain(config))}
    for path in OF_ONE_HOST:
        said.pop(f"config.{path}")
    return {**said, "program (rljax)": _program(), "JAX": jax.__version__}


def _flat(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _program() -> str:
    """Returns a hash of the version and the sources of this program."""
    folder = Path(rljax.__file__).parent
    return _hash(rljax.__version__, *(file.read_text() for file in sorted(folder.rglob("*.py"))))


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
